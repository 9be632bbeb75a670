// Steers the interactive figure: which lines, which split, what is on the horizontal axis, light or dark.
(async () => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent)
  const data = read("curves-data")
  const chosen = (name) => document.querySelector(`input[name=${name}]:checked`).value
  const dark = matchMedia("(prefers-color-scheme: dark)")
  const figure = document.getElementById("live")
  const boxes = [...figure.querySelectorAll("input[type=checkbox]")]
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

  const draw = () => {
    const {curves, quantity} = data[chosen("split")]
    const axis = chosen("axis")
    for (const [name, curve] of Object.entries(curves)) {
      part(`data ${name}`).data = {x: curve[axis], mean: curve.mean, low: curve.low, high: curve.high}
    }
    const [low, high, last] = range(Object.values(curves), axis)
    plot.y_range.setv({start: low, end: high})
    plot.x_range.setv({start: 0, end: last})
    plot.below[0].axis_label = document.querySelector("input[name=axis]:checked").dataset.label
    plot.left[0].axis_label = quantity
  }

  const paint = () => {
    const style = getComputedStyle(document.documentElement)
    const [ink, line, paper] = ["--ink", "--line", "--paper"].map((name) => style.getPropertyValue(name).trim())
    plot.setv({background_fill_color: paper, border_fill_color: paper})
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

  const show = (box) => {
    part(box.value).visible = box.checked
    part(`band ${box.value}`).visible = box.checked
  }
  for (const box of boxes) box.addEventListener("change", () => show(box))
  for (const button of figure.querySelectorAll("button")) {
    button.addEventListener("click", () => boxes.forEach((box) => {
      box.checked = button.value === "all"
      show(box)
    }))
  }
  for (const choice of figure.querySelectorAll("input[type=radio]")) choice.addEventListener("change", draw)
  dark.addEventListener("change", paint)
  boxes.forEach(show) // a browser may remember what was chosen
  draw()
  paint()
  figure.dataset.ready = "yes"
})()
