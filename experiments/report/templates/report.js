// Steers the interactive figure: which lines, which split, what is on the horizontal axis, light or dark.
(async () => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent)
  const data = read("curves-data")
  const chosen = (name) => document.querySelector(`input[name=${name}]:checked`).value
  const dark = matchMedia("(prefers-color-scheme: dark)")
  const figure = document.getElementById("live")
  const boxes = [...figure.querySelectorAll("input[type=checkbox]")]
  const tip = figure.querySelector("output")
  const MOST_BANDS = 8 // of more, none can be told from the others
  figure.hidden = false
  let view
  try {
    view = await Bokeh.embed.embed_item(read("curves-plot"), "plot")
    view = view.roots ? view.roots[0] : [...view][0]
  } catch (error) {
    figure.hidden = true // the picture stays
    throw error
  }
  document.documentElement.classList.add("live")
  const plot = view.model
  const part = (name) => plot.document.get_model_by_name(name)

  const range = (curves, axis) => {
    let [low, high, last] = [Infinity, -Infinity, 0]
    for (const curve of curves) {
      const end = curve[axis].at(-1)
      last = Math.max(last, end)
      // The steep beginning would flatten all differences.
      curve[axis].forEach((x, i) => {
        if (x >= 0.15 * end) [low, high] = [Math.min(low, curve.low[i]), Math.max(high, curve.high[i])]
      })
    }
    const margin = 0.04 * (high - low) || 0.1
    return [low - margin, high + margin, last]
  }

  const shown = () => boxes.filter((box) => box.checked).map((box) => box.value)

  const draw = () => {
    const {curves, quantity} = data[chosen("split")]
    const axis = chosen("axis")
    const names = shown().filter((name) => name in curves)
    const banded = names.length <= MOST_BANDS
    for (const box of boxes) {
      const [name, curve] = [box.value, curves[box.value]]
      part(name).visible = names.includes(name)
      part(`band ${name}`).visible = banded && names.includes(name)
      if (curve) part(`data ${name}`).data = {x: curve[axis], mean: curve.mean, low: curve.low, high: curve.high}
      box.parentElement.querySelector("b").textContent = curve ? curve.mean.at(-1).toFixed(2) : ""
    }
    figure.querySelector("#lines p").textContent = `last ${chosen("split") === "train" ? "training" : "validation"} value`
    for (const note of figure.querySelectorAll(".shaded")) note.hidden = !banded
    const [low, high, last] = range((names.length ? names : Object.keys(curves)).map((name) => curves[name]), axis)
    plot.y_range.setv({start: low, end: high})
    plot.x_range.setv({start: 0, end: last})
    plot.below[0].axis_label = document.querySelector("input[name=axis]:checked").dataset.label
    plot.left[0].axis_label = quantity
    tip.hidden = true
  }

  // What the line nearest to the pointer is, and its value there.
  const tell = ({x, y}) => {
    const {curves} = data[chosen("split")]
    const axis = chosen("axis")
    const points = shown().filter((name) => name in curves).map((name) => {
      const curve = curves[name]
      const away = curve[axis].map((place) => Math.abs(place - x))
      return {name, curve, i: away.indexOf(Math.min(...away))}
    })
    const distance = ({curve, i}) => Math.abs(curve.mean[i] - y)
    const nearest = points.reduce((one, other) => (one && distance(one) <= distance(other) ? one : other), null)
    tip.hidden = !nearest
    if (!nearest) return
    const {name, curve, i} = nearest
    const [mean, low, high] = [curve.mean, curve.low, curve.high].map((values) => values[i].toFixed(3))
    const at = curve[axis][i]
    tip.textContent = `${name}\n${axis === "step" ? "steps" : axis} ${at.toLocaleString("en", {maximumFractionDigits: 1})}\nmean ${mean}${low < high ? ` [${low}, ${high}]` : ""}`
    tip.dataset.side = at > plot.x_range.end / 2 ? "left" : "right"
    tip.style.left = `${view.frame.x_scale.compute(at)}px`
    tip.style.top = `${view.frame.y_scale.compute(curve.mean[i])}px`
  }

  const paint = () => {
    const style = getComputedStyle(document.documentElement)
    const [ink, line] = ["--ink", "--line"].map((name) => style.getPropertyValue(name).trim())
    for (const axis of [plot.below[0], plot.left[0]]) {
      axis.setv({axis_label_text_color: ink, major_label_text_color: ink, axis_line_color: line,
        major_tick_line_color: line, minor_tick_line_color: null})
    }
    for (const grid of plot.center) grid.grid_line_color = line
    for (const box of boxes) {
      const colour = box.dataset[dark.matches ? "dark" : "light"]
      part(box.value).glyph.line_color = colour
      part(`band ${box.value}`).glyph.fill_color = colour
    }
  }

  for (const button of figure.querySelectorAll("button")) {
    button.addEventListener("click", () => {
      for (const box of boxes) box.checked = button.value === "all"
      draw()
    })
  }
  for (const choice of figure.querySelectorAll("input")) choice.addEventListener("change", draw)
  for (const event of ["mousemove", "tap"]) plot.on_event(event, tell)
  plot.on_event("mouseleave", () => { tip.hidden = true })
  dark.addEventListener("change", paint)
  draw() // a browser may remember what was chosen
  paint()
  figure.dataset.ready = "yes"
})()
