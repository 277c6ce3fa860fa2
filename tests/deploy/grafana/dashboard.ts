// What Grafana takes as a dashboard, in JSON: its own types, with enums as the strings that they are.
import type { AnnotationQuery, Dashboard, DataQuery, GraphFieldConfig, Panel, RowPanel } from '@grafana/schema';
import type { Options } from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

type Plain<T> = T extends string ? `${T}`
  : T extends number | boolean | null | undefined ? T
  : T extends (infer U)[] ? Plain<U>[]
  : T extends object ? { [K in keyof T]: Plain<T[K]> }
  : T;

type Query = DataQuery & { expr: string; legendFormat?: string; interval?: string };
type TimeSeries = Omit<Panel<Partial<Options>, GraphFieldConfig>, 'type' | 'targets' | 'options'> & {
  type: 'timeseries'; targets: Query[]; options: Partial<Options>;
};
type Other = Omit<Panel, 'type' | 'targets'> & { type: 'gauge' | 'text'; targets?: Query[] };
type Annotation = Omit<AnnotationQuery, 'target'> & { target: Query; titleFormat: string; textFormat: string };

export type Page = Plain<Omit<Dashboard, 'panels' | 'annotations'> & {
  panels: (TimeSeries | Other | RowPanel)[];
  annotations: { list: Annotation[] };
}>;
