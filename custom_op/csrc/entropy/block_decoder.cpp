#include "entropy/block_decoder.h"

namespace custom_op {
namespace {

// Positions in Block::coefficients by the number of coefficients passed so far, with its flags.
using Positions = std::array<uint8_t, 256>;

constexpr Positions positions_of(size_t coefficients) {
  Positions positions{};
  for (uint8_t& position : positions) position = Block::kUnused;
  for (size_t i = 0; i < coefficients; ++i) positions[i + 1] = kNaturalOrder[i];
  return positions;
}

template <Keep kKeep>
constexpr Positions kPositions = positions_of(kKeep == Keep::kAll ? 64 : 1);

struct State {
  State(const BlockRun& run, const HuffmanEntry* dc)
      : bits(run.bits), block(run.begin), end(run.end), table(dc) {}

  BitReader bits;
  Block* block;
  const Block* end;
  const HuffmanEntry* table;  // for the next symbol
  uint64_t passed = 0;        // coefficients of the block that are done, zeros included
};

// Takes a symbol that one look-up does not resolve, and refills. Returns false if there is none.
CUSTOM_OP_INLINE bool take_symbol(State& state, const HuffmanTables& tables, HuffmanEntry entry,
                                  const Positions& positions) {
  state.bits.refill();
  const bool has_symbol = (entry >> 56 & kSlow) != 0;
  int length = has_symbol ? static_cast<int>(entry >> 8 & 255) : 0;
  int symbol = static_cast<int>(entry >> 16 & 255);
  if (length == 0) {
    const auto index = (state.table - tables.entries.data()) / HuffmanTable::kSize;
    const int found = tables.codes[static_cast<size_t>(index)].find(state.bits.peek(16));
    if (found < 0) return false;
    length = found >> 8;
    symbol = found & 255;
  }
  state.bits.drop(length);
  const bool is_dc = state.passed == 0;
  const int run = is_dc ? 0 : symbol >> 4, size = symbol & 15;
  if (size == 0 && run != 15 && !is_dc) {
    state.passed |= kEndOfBlock;
  } else {
    state.passed += static_cast<uint64_t>(run) + 1;
    if (state.passed > 64) return false;
    const int value = size == 0 ? 0 : extended(static_cast<int>(state.bits.take(size)), size);
    state.block->coefficients[positions[state.passed]] = static_cast<int16_t>(value);
  }
  state.bits.refill();
  state.table = state.block->ac;
  if (state.passed >= 64) {
    state.table += state.block->to_next_dc;
    state.passed = 0;
    ++state.block;
  }
  return true;
}

// Note [No branch per block]
// Where a block ends is unpredictable, and a wrong prediction costs as much as several look-ups. So
// this step takes symbols, not blocks: the flag for the end of a block selects the next block, its
// DC table and position 0 by arithmetic. It branches only for what is rare: values and codes too
// long for the table, and blocks with all 64 coefficients.
template <Keep kKeep>
CUSTOM_OP_INLINE bool step(State& state, const HuffmanTables& tables) {
  const Positions& positions = kPositions<kKeep>;
  const HuffmanEntry entry = state.table[state.bits.peek(kLookupBits)];
  const uint64_t last = state.passed + (entry >> 56);
  if (__builtin_expect((last & kSlow) != 0, 0)) {
    return take_symbol(state, tables, entry, positions);
  }
  const uint64_t first = state.passed + (entry >> 8 & 255);
  state.bits.drop_by(entry);
  int16_t* const coefficients = state.block->coefficients.data();
  if (kKeep == Keep::kAll) coefficients[positions[last]] = static_cast<int16_t>(entry >> 32);
  coefficients[positions[first]] = static_cast<int16_t>(entry >> 16);
  // All ones at the end of the block.
  const int64_t done = static_cast<int64_t>(entry) >> 63;
  state.table = state.block->ac + (state.block->to_next_dc & done);
  state.passed = last & ~static_cast<uint64_t>(done);
  state.block += done & 1;
  return true;
}

constexpr int kStepsPerRefill = BitReader::kRefilled / kLookupBits;

template <Keep kKeep>
CUSTOM_OP_INLINE bool finish(State& state, const HuffmanTables& tables) {
  while (state.block != state.end) {
    state.bits.refill();
    for (int i = 0; i < kStepsPerRefill && state.block != state.end; ++i) {
      if (!step<kKeep>(state, tables)) return false;
    }
  }
  return true;
}

template <Keep kKeep>
bool decode_one(const HuffmanTables& tables, const HuffmanEntry* dc, const BlockRun& run) {
  State state(run, dc);
  if (!finish<kKeep>(state, tables)) return false;
  run.bits = state.bits;
  return true;
}

// Note [Two runs at once]
// Each look-up waits for the one before it, which says where its bits start. So a processor that
// could do several things at a time mostly waits. Two runs that do not depend on each other fill
// each other's gaps. Everything here must be inlined: only then do both states stay in registers.
template <Keep kKeep>
bool decode_two(const HuffmanTables& tables, const HuffmanEntry* dc, const BlockRun& run,
                const BlockRun& other) {
  State a(run, dc), b(other, dc);
  while (a.block != a.end && b.block != b.end) {
    a.bits.refill();
    b.bits.refill();
    for (int i = 0; i < kStepsPerRefill && a.block != a.end && b.block != b.end; ++i) {
      if (!step<kKeep>(a, tables) || !step<kKeep>(b, tables)) return false;
    }
  }
  if (!finish<kKeep>(a, tables) || !finish<kKeep>(b, tables)) return false;
  run.bits = a.bits;
  other.bits = b.bits;
  return true;
}

}  // namespace

bool decode_blocks(const HuffmanTables& tables, const HuffmanEntry* dc, Keep keep,
                   const BlockRun& run) {
  return keep == Keep::kAll ? decode_one<Keep::kAll>(tables, dc, run)
                            : decode_one<Keep::kDc>(tables, dc, run);
}

bool decode_blocks(const HuffmanTables& tables, const HuffmanEntry* dc, Keep keep,
                   const BlockRun& run, const BlockRun& other) {
  return keep == Keep::kAll ? decode_two<Keep::kAll>(tables, dc, run, other)
                            : decode_two<Keep::kDc>(tables, dc, run, other);
}

}  // namespace custom_op
