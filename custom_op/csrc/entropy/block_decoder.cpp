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

template <bool kKeepAc>
constexpr Positions kPositions = positions_of(kKeepAc ? 64 : 1);

struct State {
  BitReader bits;
  Block* block;
  const HuffmanEntry* table;  // for the next symbol
  uint64_t passed;            // coefficients of the block that are done, zeros included
};

// Takes a symbol that one look-up does not resolve. Returns false if there is none.
inline bool take_symbol(State& state, const HuffmanTables& tables, HuffmanEntry entry,
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
// this loop decodes symbols, not blocks: the flag for the end of a block selects the next block,
// its DC table and position 0 by arithmetic. It branches only for what is rare: values and codes
// too long for the table, blocks with all 64 coefficients, and the end of the run.
template <bool kKeepAc>
bool run(BitReader& reader, const HuffmanTables& tables, const HuffmanEntry* dc, Block* block,
         const Block* end) {
  const Positions& positions = kPositions<kKeepAc>;
  State state{reader, block, dc, 0};
  while (state.block != end) {
    state.bits.refill();
    for (int i = 0; i < BitReader::kRefilled / kLookupBits; ++i) {
      const HuffmanEntry entry = state.table[state.bits.peek(kLookupBits)];
      const uint64_t last = state.passed + (entry >> 56);
      if (__builtin_expect((last & kSlow) != 0, 0)) {
        if (!take_symbol(state, tables, entry, positions)) return false;
        break;
      }
      const uint64_t first = state.passed + (entry >> 8 & 255);
      state.bits.drop_by(entry);
      int16_t* const coefficients = state.block->coefficients.data();
      if (kKeepAc) coefficients[positions[last]] = static_cast<int16_t>(entry >> 32);
      coefficients[positions[first]] = static_cast<int16_t>(entry >> 16);
      // All ones at the end of the block.
      const int64_t done = static_cast<int64_t>(entry) >> 63;
      state.table = state.block->ac + (state.block->to_next_dc & done);
      state.passed = last & ~static_cast<uint64_t>(done);
      state.block += done & 1;
      if (state.block == end) break;
    }
  }
  reader = state.bits;
  return true;
}

}  // namespace

bool decode_blocks(BitReader& reader, const HuffmanTables& tables, const HuffmanEntry* dc,
                   Block* block, const Block* end) {
  return run<true>(reader, tables, dc, block, end);
}

bool skip_blocks(BitReader& reader, const HuffmanTables& tables, const HuffmanEntry* dc,
                 Block* block, const Block* end) {
  return run<false>(reader, tables, dc, block, end);
}

}  // namespace custom_op
