// Draws the panels of a Grafana dashboard with Grafana's own components, from values that Prometheus gave.
import {
  createTheme,
  dateTime,
  FieldType,
  getDisplayProcessor,
  ThemeContext,
  type DataFrame,
  type Field,
  type FieldConfig,
  type TimeRange,
} from '@grafana/data';
import {
  BigValue,
  BigValueColorMode,
  BigValueGraphMode,
  BigValueTextMode,
  GlobalStyles,
  PanelChrome,
  TimeSeries,
} from '@grafana/ui';
import { createRoot } from 'react-dom/client';

interface Override {
  matcher: { id: 'byRegexp'; options: string };
  properties: Array<{ id: string; value: unknown }>;
}
interface Panel {
  type: 'row' | 'stat' | 'timeseries';
  title: string;
  gridPos: { x: number; y: number; w: number; h: number };
  fieldConfig: { defaults: FieldConfig; overrides: Override[] };
  series: Array<{ name: string; values: Array<number | null> }>;
}
interface Picture {
  times: number[]; // milliseconds
  panels: Panel[];
}

const WIDTH = 1800;
const ROW = 38;
const GAP = 8;
const theme = createTheme({ colors: { mode: 'light' } });

function Dashboard({ times, panels }: Picture) {
  const from = dateTime(times[0]);
  const to = dateTime(times[times.length - 1]);
  const range: TimeRange = { from, to, raw: { from, to } };
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      {panels.map((panel, number) => {
        const { x, y, w, h } = panel.gridPos;
        const column = (WIDTH - 2 * GAP) / 24;
        const place = { left: GAP + x * column, top: y * ROW, position: 'absolute' as const };
        const width = w * column - GAP;
        const height = h * ROW - GAP;
        if (panel.type === 'row') {
          return (
            <div key={number} style={{ ...place, padding: GAP, fontWeight: 500 }}>
              ⌄ {panel.title}
            </div>
          );
        }
        return (
          <div key={number} style={place}>
            <PanelChrome title={panel.title} width={width} height={height}>
              {(width, height) => {
                const fields = panel.series.map((series, index) => field(panel, series, index));
                if (fields.length === 0) {
                  return <div style={{ height, display: 'grid', placeItems: 'center' }}>No data</div>;
                }
                return panel.type === 'stat'
                  ? stat(fields[0], times, width, height)
                  : graph(fields, times, range, width, height);
              }}
            </PanelChrome>
          </div>
        );
      })}
    </ThemeContext.Provider>
  );
}

function stat(field: Field, times: number[], width: number, height: number) {
  const last = field.values.filter((value) => value !== null).pop();
  const x = { name: 'time', type: FieldType.time, config: {}, values: times };
  return (
    <BigValue
      value={field.display!(last)}
      sparkline={{ x, y: field, timeline: undefined }}
      colorMode={BigValueColorMode.None}
      graphMode={BigValueGraphMode.Area}
      textMode={BigValueTextMode.Value}
      width={width}
      height={height}
      theme={theme}
    />
  );
}

function graph(fields: Field[], times: number[], timeRange: TimeRange, width: number, height: number) {
  const time: Field = { name: 'time', type: FieldType.time, config: {}, values: times };
  const frame: DataFrame = { fields: [time, ...fields], length: times.length };
  const legend = { showLegend: true, displayMode: 'list', placement: 'bottom', calcs: [] } as never;
  return (
    <TimeSeries
      frames={[frame]}
      timeRange={timeRange}
      timeZone="utc"
      legend={legend}
      width={width}
      height={height}
      theme={theme}
      options={{}}
    />
  );
}

/** A series as Grafana would have it behind the defaults and the overrides of its panel. */
function field(panel: Panel, series: Panel['series'][number], index: number): Field {
  const config: FieldConfig = structuredClone(panel.fieldConfig.defaults);
  config.displayName = series.name;
  config.color ??= { mode: 'palette-classic' };
  for (const { matcher, properties } of panel.fieldConfig.overrides) {
    if (new RegExp(matcher.options).test(series.name)) {
      for (const { id, value } of properties) {
        const [head, rest] = id.split('.');
        if (rest) {
          config[head as 'custom'] = { ...config.custom, [rest]: value };
        } else {
          (config as Record<string, unknown>)[head] = value;
        }
      }
    }
  }
  const made: Field = { name: series.name, type: FieldType.number, config, values: series.values };
  const known = series.values.filter((value) => value !== null);
  const [min, max] = [Math.min(...known), Math.max(...known)];
  made.state = { seriesIndex: index, range: { min, max, delta: max - min } };
  made.display = getDisplayProcessor({ field: made, theme });
  return made;
}

const picture: Picture = JSON.parse(document.getElementById('picture')!.textContent!);
createRoot(document.getElementById('root')!).render(<Dashboard {...picture} />);
