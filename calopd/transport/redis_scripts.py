"""The Lua scripts of the queue in Redis: each is one change of state, made entirely or not at all.

State of a batch in the hash `batches`: `open <epoch> <fingerprint>`. A batch that is released has none. The epoch is
that of the learner that opened the batch, the fingerprint a digest of its tickets.
"""

REPLACED = "REPLACED"
"""First word of the error that a learner gets after another one has taken over."""

# `learner` is a hash: epoch, owner, and the server's time at which it was last seen. A server that lost its last second
# may have forgotten the epoch: the learner reminds it.
_LEARNER = (
    """
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
local function replaced(key, epoch)
  epoch = tonumber(epoch)
  if epoch == 0 then return nil end
  local leading = tonumber(redis.call('HGET', key, 'epoch') or '0')
  if leading > epoch then
    return redis.error_reply('"""
    + REPLACED
    + """ by another learner of this run')
  end
  redis.call('HSET', key, 'epoch', string.format('%.0f', epoch), 'seen', string.format('%.0f', now()))
  return nil
end
"""
)

# Begins scripts that need no room, or make some. A server without memory refuses most writes, but none in a script that
# has written already; to delete a field is always allowed, also one that does not exist.
_THOUGH_FULL = "redis.call('HDEL', KEYS[1], '')\n"

# Returns the new epoch, or 0 if another learner has been seen within ARGV[3] milliseconds.
LEAD = (
    _THOUGH_FULL
    + _LEARNER
    + """
local found = redis.call('HMGET', KEYS[1], 'epoch', 'owner', 'seen')
if found[2] and found[2] ~= ARGV[1] and ARGV[4] == '0' and now() - tonumber(found[3]) < tonumber(ARGV[3]) then
  return 0
end
local epoch = math.max(tonumber(found[1] or '0') + 1, tonumber(ARGV[2]))
redis.call('HSET', KEYS[1], 'epoch', string.format('%.0f', epoch), 'owner', ARGV[1],
  'seen', string.format('%.0f', now()))
return epoch
"""
)

# KEYS of the scripts of a batch: batches, results, arrivals, stream, attempts, learner, dead.
_WITHDRAW = """
local function withdraw(batch, group)
  redis.call('DEL', KEYS[2], KEYS[3], KEYS[5])
  for _, entry in ipairs(redis.call('XRANGE', KEYS[4], '-', '+')) do
    if entry[2][4] == batch then
      redis.call('XACK', KEYS[4], group, entry[1])
      redis.call('XDEL', KEYS[4], entry[1])
    end
  end
end
"""

# A batch that is open for other tickets is withdrawn first: its results are not those of the tickets of now.
# ARGV: epoch of the learner, batch, group, fingerprint, tickets.
OPEN = (
    _LEARNER
    + _WITHDRAW
    + """
local error = replaced(KEYS[6], ARGV[1])
if error then return error end
local state = redis.call('HGET', KEYS[1], ARGV[2])
if state and string.match(state, '^open %d+ (.*)$') == ARGV[4] then return 0 end
if state then withdraw(ARGV[2], ARGV[3]) end
redis.call('HSET', KEYS[1], ARGV[2], 'open ' .. ARGV[1] .. ' ' .. ARGV[4])
for i = 5, #ARGV do redis.call('XADD', KEYS[4], '*', 't', ARGV[i], 'b', ARGV[2]) end
return 1
"""
)

# ARGV: epoch of the learner, batch, group.
CLOSE = (
    _THOUGH_FULL
    + _LEARNER
    + _WITHDRAW
    + """
local error = replaced(KEYS[6], ARGV[1])
if error then return error end
redis.call('HDEL', KEYS[1], ARGV[2])
withdraw(ARGV[2], ARGV[3])
return 1
"""
)

# Issue tickets again: without a result, without attempts, and without their dead letters.
# ARGV: epoch of the learner, batch, state of the batch, then index and ticket of each; '' = only withdraw its result.
REISSUE = (
    _LEARNER
    + """
local error = replaced(KEYS[6], ARGV[1])
if error then return error end
if redis.call('HGET', KEYS[1], ARGV[2]) ~= ARGV[3] then return 0 end
local wanted = {}
for i = 4, #ARGV, 2 do
  wanted[ARGV[i]] = true
  redis.call('HDEL', KEYS[2], ARGV[i])
  redis.call('HDEL', KEYS[5], ARGV[i] .. ':alone', ARGV[i] .. ':failed')
  redis.call('XADD', KEYS[3], '*', 'i', ARGV[i], 'n', -1)
  if ARGV[i + 1] ~= '' then redis.call('XADD', KEYS[4], '*', 't', ARGV[i + 1], 'b', ARGV[2]) end
end
for _, entry in ipairs(redis.call('XRANGE', KEYS[7], '-', '+')) do
  if entry[2][6] == ARGV[2] and wanted[entry[2][8]] then redis.call('XDEL', KEYS[7], entry[1]) end
end
return (#ARGV - 3) / 2
"""
)

# A result counts only while its ticket is in the stream and its batch is open in the ticket's epoch: one that was
# withdrawn with its batch may have been issued again, for other weights of the same policy version.
# Also used for dead letters: the result is the empty string, and the error goes to the dead stream.
# ARGV: batch, index, result, tokens, group, entry, error, ticket, epoch, policy version, policy sha256.
COMMIT = """
local fresh = 0
redis.call('XACK', KEYS[4], ARGV[5], ARGV[6])
local there = redis.call('XDEL', KEYS[4], ARGV[6]) == 1
local state = redis.call('HGET', KEYS[1], ARGV[1])
if there and state and string.match(state, '^open (%d+) ') == ARGV[9] then
  fresh = redis.call('HSETNX', KEYS[2], ARGV[2], ARGV[3])
  if fresh == 1 then
    redis.call('HDEL', KEYS[5], ARGV[2] .. ':alone', ARGV[2] .. ':failed')
    redis.call('XADD', KEYS[3], '*', 'i', ARGV[2], 'n', ARGV[4], 'v', ARGV[10], 's', ARGV[11])
    if ARGV[7] ~= '' then
      redis.call('XADD', KEYS[7], '*', 't', ARGV[8], 'error', ARGV[7], 'b', ARGV[1], 'i', ARGV[2])
    end
  end
end
return fresh
"""

# ARGV: batch, field, change.
ATTEMPT = """
if not redis.call('HGET', KEYS[1], ARGV[1]) then return 0 end
return redis.call('HINCRBY', KEYS[5], ARGV[2], ARGV[3])
"""

# The ticket becomes a new entry of its stream, with no deliveries. ARGV: group, entry, ticket, batch.
GIVE_BACK = """
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
if redis.call('XDEL', KEYS[1], ARGV[2]) == 1 then redis.call('XADD', KEYS[1], '*', 't', ARGV[3], 'b', ARGV[4]) end
return 1
"""

# An entry that nobody can read. KEYS: stream, malformed. ARGV: group, entry, content, error.
SET_ASIDE = """
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
if redis.call('XDEL', KEYS[1], ARGV[2]) == 1 then
  redis.call('XADD', KEYS[2], 'MAXLEN', 1000, '*', 'content', ARGV[3], 'error', ARGV[4])
  return 1
end
return 0
"""

# KEYS: learner, policies. ARGV: epoch of the learner, version, sha256.
ANNOUNCE = (
    _THOUGH_FULL
    + _LEARNER
    + """
local error = replaced(KEYS[1], ARGV[1])
if error then return error end
redis.call('XADD', KEYS[2], 'MAXLEN', 64, '*', 'version', ARGV[2], 'sha256', ARGV[3])
return 1
"""
)

# KEYS: learner. ARGV: epoch of the learner.
SEEN = _THOUGH_FULL + _LEARNER + "return replaced(KEYS[1], ARGV[1]) or 1"
