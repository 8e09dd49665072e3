// Decodes the Huffman-coded coefficients of many blocks in a row, or of two such rows at once.
#pragma once

#include <array>

#include "entropy/bits.h"
#include "entropy/huffman.h"

namespace custom_op {

// The tables of a scan: four for DC, then four for AC.
struct HuffmanTables {
  std::array<HuffmanTable, 8> codes;
  alignas(64) std::array<HuffmanEntry, 8 * HuffmanTable::kSize> entries;

  // Returns false if libjpeg refuses the code.
  bool build(int index, const HuffmanCode& code) {
    return codes[index].build(code, index < 4, entries.data() + index * HuffmanTable::kSize);
  }
  const HuffmanEntry* table(int index) const {
    return entries.data() + index * HuffmanTable::kSize;
  }
};

// One block and its tables.
struct alignas(32) Block {
  static constexpr int kUnused = 64;  // position of writes that have no effect

  std::array<int16_t, 64 + 4> coefficients;  // in natural order, not dequantized
  const HuffmanEntry* ac;
  int64_t to_next_dc;  // distance from `ac` to the DC table of the next block
};

// Blocks that follow each other in a scan, and the reader that stands before them.
struct BlockRun {
  BitReader& bits;
  Block* begin;  // their coefficients must be zeros
  const Block* end;
};

// Which coefficients of a block to keep. The DC coefficients are differences.
enum class Keep { kAll, kDc };

// Decodes a run; `dc` is the DC table of its first block. Returns false if a table has no such code
// or a block has too many coefficients.
bool decode_blocks(const HuffmanTables& tables, const HuffmanEntry* dc, Keep keep,
                   const BlockRun& run);

// The same for two runs of different readers, in less time than one after the other.
bool decode_blocks(const HuffmanTables& tables, const HuffmanEntry* dc, Keep keep,
                   const BlockRun& run, const BlockRun& other);

}  // namespace custom_op
