// What fades: factors of at most 1, which multiply keys, pairs of positions and states (ops/linear/stabiliser.py).

struct Factors {
  Real kept[CHUNK], enter[CHUNK], read[CHUNK], stay[CHUNK];
  double scale[CHUNK];  // c_i
  double end;           // c after the chunk, of a state that was multiplied by `last` as it is rounded
  Real last;            // what is left of the state after the chunk
};

// Of n positions from `start`, after a state with stabiliser `before`; `log_scale` are those of the keys.
static void find_factors(const Head& h, long start, long n, const double* log_scale, double before, Factors& f) {
  const Call& c = h.call;
  const double* decay = c.log_decay ? c.log_decay + h.index * c.length + start : nullptr;
  double now = before, read = 1;
  for (long i = 0; i < n; i++) {
    const bool hidden = h.is_padding(start + i);
    const double faded = now + (decay ? decay[i] : 0);
    if (h.has_scale) {
      const double key = hidden ? SMALLEST : log_scale[i];
      now = std::max(faded, key);
      f.enter[i] = hidden ? 0 : key == now ? 1 : Real(std::exp(key - now));
    } else {
      now = 0;
      f.enter[i] = !hidden;
    }
    const double kept = faded == now ? 1 : std::exp(faded - now);
    f.kept[i] = Real(kept);
    f.scale[i] = now;
    f.read[i] = Real(read *= kept);
  }
  f.last = Real(read);
  // States are multiplied by many of these: what rounding took from one is in the stabiliser, and so in the next.
  f.end = f.last < std::numeric_limits<Real>::min() ? now : now + (read / f.last - 1);
  double stay = 1;
  for (long i = n - 1; i >= 0; i--) {
    f.stay[i] = Real(stay * f.enter[i]);
    stay *= f.kept[i];
  }
}

// What pairs (i, j <= i) of n positions are multiplied by, zero elsewhere.
static void pair_factors(const Factors& f, long n, Real* P, long row) {
  std::memset(P, 0, padded(n) * row * sizeof(Real));
  for (long i = 0; i < n; i++) {
    if (i)
      for (long j = 0; j < i; j += LANES) store(P + i * row + j, load(P + (i - 1) * row + j) * f.kept[i]);
    P[i * row + i] = f.enter[i];
  }
}

// S (.)= P below and on the diagonal; zero above it, in the panels that the diagonal crosses.
static void weigh(long rows, Real* S, const Real* P, long row) {
  for (long i = 0; i < rows; i++) {
    const long end = (i / PANEL + 1) * PANEL;
    for (long j = 0; j <= i; j += LANES) store(S + i * row + j, load(S + i * row + j) * load(P + i * row + j));
    for (long j = i + 1; j < end; j++) S[i * row + j] = 0;
  }
}
