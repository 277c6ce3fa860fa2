/* One pretended GPU: what torch asks of the CUDA runtime and of the driver, answered without hardware.
 *
 * Loaded with LD_PRELOAD as libcuda.so.1, its functions come before those of libcudart. Device memory is main memory,
 * streams and events are numbers, kernels do nothing. With it torch takes the paths of a GPU host, also in a backward
 * pass, while fake tensors compute shapes, types and devices (tests/gpu/fake_cuda.py).
 */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#define GIB (1024ul * 1024 * 1024)
#define ANSWER(statement) { statement; return cudaSuccess; }
typedef struct cudaDeviceProp Properties;
typedef struct cudaPointerAttributes Attributes;
typedef enum cudaMemcpyKind Kind;
typedef enum cudaStreamCaptureStatus Status;

cudaError_t cudaGetDeviceCount(int *count) ANSWER(*count = 1)
cudaError_t cudaGetDevice(int *device) ANSWER(*device = 0)
cudaError_t cudaSetDevice(int device) ANSWER()
cudaError_t cudaDriverGetVersion(int *version) ANSWER(*version = 13000)
cudaError_t cudaDeviceSynchronize(void) ANSWER()
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) ANSWER(*value = 1)
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int other) ANSWER(*can = 0)
cudaError_t cudaGetLastError(void) ANSWER()
cudaError_t cudaPeekAtLastError(void) ANSWER()
cudaError_t cudaGetDeviceProperties(Properties *found, int device) {
  memset(found, 0, sizeof *found);
  strcpy(found->name, "pretended H100");
  found->major = 9;
  found->totalGlobalMem = 80 * GIB;
  found->multiProcessorCount = 132;
  found->warpSize = 32;
  found->maxThreadsPerBlock = 1024;
  found->maxThreadsPerMultiProcessor = 2048;
  found->sharedMemPerBlock = 48 * 1024;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *total) ANSWER(*left = 79 * GIB; *total = 80 * GIB)
cudaError_t cudaMalloc(void **place, size_t size) ANSWER(*place = calloc(1, size))
cudaError_t cudaFree(void *place) ANSWER(free(place))
cudaError_t cudaHostAlloc(void **place, size_t size, unsigned flags) ANSWER(*place = calloc(1, size))
cudaError_t cudaFreeHost(void *place) ANSWER(free(place))
cudaError_t cudaMemcpy(void *to, const void *from, size_t size, Kind kind) ANSWER(memmove(to, from, size))
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, Kind kind, cudaStream_t stream)
    ANSWER(memmove(to, from, size))
cudaError_t cudaMemset(void *place, int value, size_t size) ANSWER(memset(place, value, size))
cudaError_t cudaMemsetAsync(void *place, int value, size_t size, cudaStream_t stream)
    ANSWER(memset(place, value, size))
cudaError_t cudaPointerGetAttributes(Attributes *found, const void *place) ANSWER(memset(found, 0, sizeof *found))

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) ANSWER(*least = 0; *greatest = -1)
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
    ANSWER(*stream = (cudaStream_t)8)
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) ANSWER(*stream = (cudaStream_t)8)
cudaError_t cudaStreamDestroy(cudaStream_t stream) ANSWER()
cudaError_t cudaStreamSynchronize(cudaStream_t stream) ANSWER()
cudaError_t cudaStreamQuery(cudaStream_t stream) ANSWER()
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) ANSWER()
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, Status *status) ANSWER(*status = cudaStreamCaptureStatusNone)
cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t stream, Status *status, unsigned long long *id, cudaGraph_t *graph, const cudaGraphNode_t **nodes,
    const cudaGraphEdgeData **edges, size_t *count) ANSWER(*status = cudaStreamCaptureStatusNone)
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) ANSWER()
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) ANSWER(*event = (cudaEvent_t)8)
cudaError_t cudaEventDestroy(cudaEvent_t event) ANSWER()
cudaError_t cudaEventQuery(cudaEvent_t event) ANSWER()
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) ANSWER()
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) ANSWER()
cudaError_t cudaEventSynchronize(cudaEvent_t event) ANSWER()
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) ANSWER(*milliseconds = 0)
cudaError_t cudaLaunchKernel(
    const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) ANSWER()

/* The driver's own functions, and those of NVML, which torch opens as libnvidia-ml.so.1. */
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) ANSWER(*flags = 0; *active = 1)
int nvmlInit(void) ANSWER()
int nvmlDeviceGetCount_v2(int *count) ANSWER(*count = 1)
