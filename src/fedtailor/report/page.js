"use strict";

const content = JSON.parse(document.getElementById("content").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const drawn = new Set();
const NARROW = 640;
// Named one by one: among plotly.js's own buttons is one that uploads the data.
const OPTIONS = {
  responsive: true,
  displaylogo: false,
  showSendToCloud: false,
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
};

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// On a dark ground black lines vanish, and much is pale where on a light one it is dark.
function visible(traces) {
  if (!dark.matches) return structuredClone(traces);
  const text = JSON.stringify(traces).replaceAll("#000000", "#d5d9de").replaceAll("rgba(0,0,0,", "rgba(213,217,222,");
  return JSON.parse(text).map((trace) => (trace.colorscale ? { ...trace, colorscale: turned(trace.colorscale) } : trace));
}

// The lowest shade stays clear of the ground: a little must not look like nothing.
function turned(scale) {
  const shades = scale.map(([, shade]) => shade).reverse();
  return scale.map(([at], k) => [at, k === 0 ? "rgb(24,58,90)" : shades[k]]);
}

function dressed(layout, box) {
  const narrow = box.clientWidth < NARROW;
  const lines = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line") };
  const legend = narrow
    ? { orientation: "h", x: 0, y: -0.22, yanchor: "top", maxheight: 0.35 }
    : { x: 1.01, y: 1, maxheight: 1 };
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 13, color: colour("--ink") },
    margin: { l: 50, r: 14, t: 34, b: 46 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--soft"), activecolor: colour("--accent") },
    hoverlabel: { namelength: -1 },
    uirevision: "kept",
    ...layout,
    height: layout.height + (narrow && layout.showlegend ? 140 : 0),
    legend: { font: { size: 12 }, ...legend },
    xaxis: { ...lines, ...layout.xaxis },
    yaxis: { ...lines, ...layout.yaxis },
  };
}

function draw(id) {
  const box = document.getElementById(id);
  const chart = content.charts[id];
  drawn.add(id);
  return Plotly.react(box, visible(chart.data), dressed(chart.layout, box), OPTIONS);
}

function drawAll() {
  return Promise.all(Object.keys(content.charts).map(draw));
}

const onScreen = new IntersectionObserver(
  (entries) => entries.filter((e) => e.isIntersecting && !drawn.has(e.target.id)).forEach((e) => draw(e.target.id)),
  { rootMargin: "600px" },
);
document.querySelectorAll(".chart").forEach((box) => onScreen.observe(box));

let waiting = 0;
function again() {
  clearTimeout(waiting);
  waiting = setTimeout(() => drawn.forEach(draw), 200);
}
window.addEventListener("resize", again);
dark.addEventListener("change", again);
window.addEventListener("beforeprint", drawAll);

// While a run goes on: words are replaced where they changed, charts move on with their toggles and zoom.
async function refresh() {
  const sign = document.getElementById("live");
  try {
    const answer = await fetch(`content.json?since=${content.stamp}`, { cache: "no-store" });
    if (answer.status === 200) {
      const fresh = await answer.json();
      if (Object.keys(fresh.texts).join() !== Object.keys(content.texts).join()) return location.reload();
      for (const [id, html] of Object.entries(fresh.texts)) {
        if (html !== content.texts[id]) document.querySelector(`#${id} > .text`).innerHTML = html;
      }
      Object.assign(content, fresh);
      drawn.forEach(draw);
    }
    sign.textContent = `live, ${new Date().toLocaleTimeString()}`;
  } catch {
    sign.textContent = "The watch has ended: this is its last state.";
  }
  setTimeout(refresh, 2000);
}
if (content.stamp) setTimeout(refresh, 1000);
