// Tables of several rows are sorted by a column and filtered by words.
for (const table of document.querySelectorAll("table.results")) {
  const rows = [...table.tBodies[0].rows]
  const heads = [...table.tHead.rows[0].cells]
  if (rows.length < 4) continue
  const text = (row, column) => row.cells[column].textContent.trim()
  const number = (value) => parseFloat(value.replaceAll(",", ""))
  const bar = Object.assign(document.createElement("p"), {className: "sorting"})
  bar.innerHTML = `<label>sort by <select><option value="">as it was</option></select></label>
    <button type="button" hidden>reverse</button>
    <label>only <input type="search" placeholder="words of a row" size="14"></label>`
  const [select, button, only] = bar.querySelectorAll("select, button, input")
  heads.forEach((head, column) => select.add(new Option(head.textContent, column)))
  let falling = false

  const sort = () => {
    const column = select.value
    const compare = (one, other) => {
      const [a, b] = [text(one, column), text(other, column)]
      const [x, y] = [number(a), number(b)]
      if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y) || (falling ? b.localeCompare(a) : a.localeCompare(b))
      return falling ? y - x : x - y
    }
    table.tBodies[0].append(...(column === "" ? rows : rows.toSorted(compare)))
    table.classList.toggle("sorted", column !== "")
    heads.forEach((head, place) => {
      if (String(place) === column) head.ariaSort = falling ? "descending" : "ascending"
      else head.removeAttribute("aria-sort")
    })
    button.hidden = column === ""
  }

  const choose = (column) => {
    falling = select.value === column && !falling
    select.value = column
    sort()
  }

  select.addEventListener("change", () => { falling = false; sort() })
  button.addEventListener("click", () => choose(select.value))
  heads.forEach((head, column) => head.addEventListener("click", () => choose(String(column))))
  only.addEventListener("input", () => {
    const words = only.value.toLowerCase().split(/\s+/)
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word))
  })
  table.before(bar)
}
