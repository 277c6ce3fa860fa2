"""Style and script of the report. Colours are variables: one list serves the page and the curves, day and night."""

STYLE = """
:root{color-scheme:light dark;--page:#f7f7f5;--card:#fff;--ink:#1d2126;--soft:#626a73;--line:#d9dbd8;--grid:#ecedea;
--accent:#2f5d8a;--heat:#8fb3d6;--band:rgba(120,120,120,.13);--idle:#c9ccca;--series-1:#2f5d8a;--series-2:#c47a2c;--series-3:#4f8a5b;
--series-4:#8a5a93;--series-5:#a8433a;--series-6:#3a8f98;--series-7:#7d7136;--series-8:#5b6470;--right:#3b7a49;--wrong:#a8433a;--notice:#fbf4e2;--notice-line:#e2cf9c;
--down:214,69,56;--up:46,110,190;--less:196,112,20;--more:24,140,120}
@media (prefers-color-scheme:dark){:root{--page:#15181b;--card:#1d2125;--ink:#e4e6e8;--soft:#9aa2aa;--line:#363c42;
--grid:#2a2f34;--accent:#86b4e0;--heat:#2f567d;--band:rgba(200,200,200,.11);--idle:#4a5157;--series-1:#7fb0df;--series-2:#e0a062;
--series-3:#86c493;--series-4:#c39acb;--series-5:#e58a80;--series-6:#7cc6ce;--series-7:#c4b76c;--series-8:#a7b0ba;--right:#86c493;--wrong:#e58a80;--notice:#2b2719;--notice-line:#574b26;
--down:226,88,74;--up:78,142,226;--less:216,134,40;--more:40,166,144}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1200px;margin:0 auto;padding:36px 24px 64px}
h1,h2,h3,p,figure{margin:0}
h1{font-size:34px;line-height:1.2;letter-spacing:-.01em;overflow-wrap:anywhere}
section{margin-top:44px}
section h2{font-size:20px;margin-bottom:14px}
h3{font-size:15px}
.kicker{color:var(--soft);font-size:13px}
.about{margin-top:8px;color:var(--soft);display:flex;flex-wrap:wrap;gap:2px 22px}
.about b{color:var(--ink);font-weight:600;overflow-wrap:anywhere}
.notice{margin-top:18px;padding:10px 14px;background:var(--notice);border:1px solid var(--notice-line);
border-radius:6px}
.cards{display:grid;grid-template-columns:1.5fr 1fr 1fr 1.3fr .8fr;gap:14px;margin-top:24px}
.card,figure,article,details{background:var(--card);border:1px solid var(--line);border-radius:8px}
.card{padding:14px 16px}
.card h2{font-size:13px;font-weight:500;color:var(--soft)}
.card p{font-size:12.5px;color:var(--soft);line-height:1.4}
.card .value{font-size:23px;font-weight:600;color:var(--ink);line-height:1.35;font-variant-numeric:tabular-nums}
.charts{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:14px}
figure{padding:14px 14px 8px;min-width:0;display:flex;flex-direction:column}
figure:last-child:nth-child(odd){grid-column:1/-1}
figcaption p{color:var(--soft);font-size:13px;line-height:1.4}
figcaption{flex:1}
.plot{margin-top:6px}
.absent{color:var(--soft);padding:26px 0;font-style:italic}
.toolbar{position:sticky;top:0;z-index:2;padding:10px 0;background:var(--page);border-bottom:1px solid var(--line);
display:flex;flex-wrap:wrap;align-items:center;gap:8px 20px}
.switch{display:inline-flex;border:1px solid var(--line);border-radius:6px;overflow:hidden}
.switch button{font:inherit;font-size:13.5px;padding:5px 12px;border:0;background:var(--card);color:var(--soft);
cursor:pointer}
.switch button[aria-pressed=true]{background:var(--accent);color:var(--card)}
.switch button:disabled{opacity:.45;cursor:not-allowed}
.legend{font-size:12.5px;color:var(--soft)}
.legend span{display:inline-block;padding:1px 7px;color:var(--ink);white-space:nowrap}
.hint{margin-top:8px;color:var(--soft);font-size:13px}
.wide,.hint+article{margin-top:10px}
.wide+h3{margin-top:28px}
#trajectories h3{margin:20px 0 8px}
#trajectories h3,article,section{scroll-margin-top:64px}
article{margin-bottom:12px;overflow:hidden}
article header{display:flex;flex-wrap:wrap;gap:0 18px;padding:8px 16px;font-size:13px;color:var(--soft);
border-bottom:1px solid var(--line)}
.right{color:var(--right);font-weight:600}.wrong{color:var(--wrong);font-weight:600}
.tokens{padding:12px 16px;max-height:420px;overflow:auto;white-space:pre-wrap;overflow-wrap:anywhere;
font:13.5px/1.85 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
.tokens span{border-radius:2px;padding:2px 0}
.tokens span:hover{outline:1px solid var(--ink)}
.ws{font-style:normal;color:var(--soft);opacity:.6}
[data-view=kept] .for-deviation,[data-view=deviation] .for-kept{display:none}
[data-view=deviation] .down1{background:rgba(var(--down),.13)}[data-view=deviation] .up1{background:rgba(var(--up),.13)}
[data-view=deviation] .down2{background:rgba(var(--down),.27)}[data-view=deviation] .up2{background:rgba(var(--up),.27)}
[data-view=deviation] .down3{background:rgba(var(--down),.44)}[data-view=deviation] .up3{background:rgba(var(--up),.44)}
[data-view=deviation] .down4{background:rgba(var(--down),.64)}[data-view=deviation] .up4{background:rgba(var(--up),.64)}
[data-view=deviation] .down5{background:rgba(var(--down),.88)}[data-view=deviation] .up5{background:rgba(var(--up),.88)}
[data-view=kept] .less1{background:rgba(var(--less),.12)}[data-view=kept] .more1{background:rgba(var(--more),.12)}
[data-view=kept] .less2{background:rgba(var(--less),.25)}[data-view=kept] .more2{background:rgba(var(--more),.25)}
[data-view=kept] .less3{background:rgba(var(--less),.42)}[data-view=kept] .more3{background:rgba(var(--more),.42)}
[data-view=kept] .less4{background:rgba(var(--less),.68)}[data-view=kept] .more4{background:rgba(var(--more),.68)}
[data-view=kept] [class*=less]{box-shadow:inset 0 -2px rgb(var(--less))}
[data-view=kept] [class*=more]{box-shadow:inset 0 2px rgb(var(--more))}
[data-view=kept] .removed{color:var(--soft);text-decoration:line-through;opacity:.75}
details{padding:14px 16px}
summary{cursor:pointer}
summary h2{display:inline;margin:0}
.settings{columns:2;column-gap:28px;margin-top:14px}
table{border-collapse:collapse;width:100%;margin-bottom:20px;break-inside:avoid;font-size:13px}
caption{text-align:left;font-weight:600;padding-bottom:4px}
th,td{text-align:left;font-weight:400;padding:3px 0;border-top:1px solid var(--grid);vertical-align:top}
th{color:var(--soft);width:45%}
td{overflow-wrap:anywhere;font-family:ui-monospace,Menlo,Consolas,monospace}
.even{grid-template-columns:repeat(auto-fit,minmax(190px,1fr))}
.wide{overflow-x:auto}
.results{width:auto;min-width:60%;margin:0}
.results th,.results td{padding:5px 18px 5px 0;width:auto;white-space:nowrap;font-variant-numeric:tabular-nums}
.results thead th{border-top:0}
.results td{font-family:inherit;text-align:right}
.results th{text-align:left}
.results thead th+th{text-align:right}
.results td.name,.results thead th.name{text-align:left}
.results .strong td,.results .strong th,.results b{font-weight:650;color:var(--ink)}
.question{padding:12px 16px;border-bottom:1px solid var(--line);white-space:pre-wrap}
.answers{padding:0 16px 12px}
.answers details{border:0;border-top:1px solid var(--grid);border-radius:0;padding:6px 0}
.answers pre{margin:8px 0 4px;white-space:pre-wrap;overflow-wrap:anywhere;max-height:420px;overflow:auto;
font:13px/1.6 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
@media (max-width:1000px){.cards{grid-template-columns:repeat(2,1fr)}.charts{grid-template-columns:minmax(0,1fr)}
.settings{columns:1}.toolbar{position:static}.results th,.results td{padding-right:11px}
.results thead th{white-space:normal;vertical-align:bottom}}
"""

SCRIPT = """
"use strict";
const figures = [...document.querySelectorAll(".plot")].map(
  plot => [plot, JSON.parse(plot.querySelector("script").textContent)]);

function coloured(value, css) {
  if (typeof value === "string") return value.startsWith("--") ? css.getPropertyValue(value).trim() : value;
  if (Array.isArray(value)) return value.map(inner => coloured(inner, css));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, coloured(inner, css)]));
}

function exported(format) {
  return {name: format, title: "Download as " + format.toUpperCase(), icon: Plotly.Icons.camera, click: plot => {
    const title = plot.closest("figure").querySelector("h3").textContent;
    const background = getComputedStyle(document.documentElement).getPropertyValue("--card").trim();
    Plotly.toImage({data: plot.data, layout: {...plot.layout, paper_bgcolor: background}},
      {format, width: plot.clientWidth, height: plot.clientHeight, scale: format === "png" ? 2 : 1}).then(url => {
      const link = document.createElement("a");
      link.href = url;
      link.download = document.title + " - " + title + "." + format;
      link.click();
    });
  }};
}

function draw() {
  const css = getComputedStyle(document.documentElement);
  for (const [plot, figure] of figures) {
    if (!plot.clientWidth) continue;  // out of sight: drawn when it is switched to
    const {data, layout} = coloured(figure, css);
    // By default plotly.js offers to upload the chart; a run's numbers stay in the page.
    Plotly.react(plot, data, layout, {responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "",
      modeBarButtonsToRemove: [
        "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "lasso2d", "select2d", "autoScale2d", "toImage"
      ],
      modeBarButtonsToAdd: ["png", "svg"].map(exported)});
  }
}

draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

const trajectories = document.getElementById("trajectories");
const buttons = trajectories ? [...trajectories.querySelectorAll("button[data-show]")] : [];
for (const button of buttons) {
  button.addEventListener("click", () => {
    trajectories.dataset.view = button.dataset.show;
    for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
  });
}
"""
