// What a call is given, one sequence of one head of it, its state, and the memory of a task.

static constexpr double SMALLEST = std::numeric_limits<Real>::lowest();  // the scale of what is not there

// A tensor (batch, heads, length, width) whose last axis is contiguous.
struct Rows {
  Real* data;
  long batch, head, position;
};

// native.py has the same fields in the same order.
struct Call {
  long size;  // of this struct, to notice that the two differ
  long batch, heads, length, keys, width, values, features;  // a causal call has as many keys as queries
  long formula, hyperbolic, paired, denominator;
  double eps;
  Rows q, k, v, denominator_q, denominator_k;
  const double *query_scale, *key_scale, *log_decay;  // (batch, heads, length)
  const Real *pair_decay, *denominator_decay;         // (batch, heads, length, features / 2), (batch, heads, length)
  const uint8_t* padding;                             // (batch, keys)
  const Real *q_rotation, *k_rotation;               // (batch or 1, length, features): cosine, sine, ...
  long q_rotation_batch, k_rotation_batch;            // strides; 0 for one of all
  const Real *memory, *key_sum;                   // (batch, heads, features, values), (batch, heads, features)
  const double* stabiliser;                           // (batch, heads)
  const Real* projection;                            // (rows, width), of unscaled queries and keys
  // Results of the forward pass.
  Rows output;
  Real *total, *new_memory, *new_key_sum, *saved;
  double *scale, *new_stabiliser;
  // The backward pass.
  Rows grad_output;
  const Real *grad_total, *grad_new_memory, *grad_new_key_sum;
  Rows grad_q, grad_k, grad_v, grad_denominator_q, grad_denominator_k;
  Real *of_q, *of_k;   // (batch, heads, length): gradients of the exponents; with pairs (batch, heads, K, length)
  double* of_states;  // (batch, heads, stretches): likewise of the states that were saved after each stretch
  Real *grad_memory, *grad_key_sum;
  // How to run `function(data)` on so many threads: GOMP_parallel of the OpenMP that PyTorch uses, or null for one.
  void (*parallel)(void (*function)(void*), void* data, unsigned threads, unsigned flags);
  long threads;
};

// At least n floats, aligned to a cache line; a thread keeps them for its next call, unless they are many.
struct Memory {
  static constexpr long KEPT = 1 << 20;
  Real* data;
  std::unique_ptr<Real[]> own;
  explicit Memory(long n) {
    static thread_local std::unique_ptr<Real[]> kept;
    static thread_local long size = 0;
    n += PANEL;
    if (n > KEPT) {
      own.reset(new Real[n]);
    } else if (size < n) {
      kept.reset(new Real[n]);
      size = n;
    }
    Real* start = own ? own.get() : kept.get();
    data = reinterpret_cast<Real*>((reinterpret_cast<uintptr_t>(start) + 63) & ~uintptr_t{63});
  }
};

// Memory of one task, handed out piece by piece; without a size it only measures.
class Arena {
 public:
  explicit Arena(long n = -1) : memory_(std::max(n, 0L)), start_(n < 0 ? nullptr : memory_.data) {}
  Real* take(long n) {
    Real* piece = start_ ? start_ + used_ : nullptr;
    used_ += padded(n) + PANEL;
    return piece;
  }
  long used() const { return used_; }

 private:
  Memory memory_;
  Real* start_;
  long used_ = 0;
};

static long chunk_count(const Call& call) { return (call.length + CHUNK - 1) / CHUNK; }

// One sequence of one head, with its sizes.
struct Head {
  const Call& call;
  long index, batch, head;  // index = batch * heads + head
  long features, width, values;
  long feature_row, width_row, value_row;
  long memory, state;  // elements of a memory in panels, and of all of a state
  bool has_scale, has_factors;

  Head(const Call& c, long i) : call(c), index(i), batch(i / c.heads), head(i % c.heads) {
    features = padded(c.features);
    width = padded(c.width);
    values = padded(c.values);
    feature_row = features + PANEL;
    width_row = width + PANEL;
    value_row = values + PANEL;
    memory = features * values;
    state = memory + features + PANEL;
    has_scale = c.formula == FAVOR || c.key_scale;
    has_factors = has_scale || c.log_decay || c.padding;
  }
  Real* at(const Rows& x, long position) const {
    return x.data + batch * x.batch + head * x.head + position * x.position;
  }
  const Real* rotation(const Real* table, long stride, long position) const {
    return table ? table + batch * stride + position * call.features : nullptr;
  }
  bool is_padding(long position) const { return call.padding && call.padding[batch * call.length + position]; }
  long chunks() const { return chunk_count(call); }
  long rows(long chunk) const { return std::min(CHUNK, call.length - chunk * CHUNK); }
  bool sums() const { return call.denominator != NONE; }
};

// How much memory a task takes whose parts T hands out.
template <typename T>
static long measured(const Head& h) {
  Arena arena;
  T(h, arena);
  return arena.used();
}

// A state: memory in panels (M x Dv), key_sum (M), stabiliser.
struct State {
  Real *memory, *key_sum;
  double stabiliser;
  void from(const Real* saved, const Head& h) {
    std::memcpy(memory, saved, h.memory * sizeof(Real));
    std::memcpy(key_sum, saved + h.memory, h.features * sizeof(Real));
    std::memcpy(&stabiliser, saved + h.memory + h.features, sizeof(double));
  }
  void to(Real* saved, const Head& h) const {
    std::memcpy(saved, memory, h.memory * sizeof(Real));
    std::memcpy(saved + h.memory, key_sum, h.features * sizeof(Real));
    std::memcpy(saved + h.memory + h.features, &stabiliser, sizeof(double));
  }
};

static void pack(const Head& h, const Real* from, Real* panels) {
  std::memset(panels, 0, h.memory * sizeof(Real));
  if (!from) return;
  const long values = h.call.values;
  for (long m = 0; m < h.call.features; m++)
    for (long d = 0; d < values; d += PANEL)
      std::memcpy(panels + d * h.features + m * PANEL, from + m * values + d,
                  std::min(PANEL, values - d) * sizeof(Real));
}

static void unpack(const Head& h, const Real* panels, Real* to) {
  const long values = h.call.values;
  for (long m = 0; m < h.call.features; m++)
    for (long d = 0; d < values; d += PANEL)
      std::memcpy(to + m * values + d, panels + d * h.features + m * PANEL,
                  std::min(PANEL, values - d) * sizeof(Real));
}

static void pack_vector(const Head& h, const Real* from, Real* to) {
  std::memset(to, 0, h.features * sizeof(Real));
  if (from) std::memcpy(to, from, h.call.features * sizeof(Real));
}

static State first_state(const Head& h, Real* memory, Real* key_sum) {
  const Call& c = h.call;
  pack(h, c.memory ? c.memory + h.index * c.features * c.values : nullptr, memory);
  pack_vector(h, c.key_sum ? c.key_sum + h.index * c.features : nullptr, key_sum);
  return {memory, key_sum, h.has_scale ? (c.stabiliser ? c.stabiliser[h.index] : SMALLEST) : 0};
}

// Some chunks of one sequence, and what passes between such pieces: in a forward pass the state before the first
// chunk, in a backward pass the gradient of the state after the last one.
struct Piece {
  long index, first, last;
  Real* passed;
};
