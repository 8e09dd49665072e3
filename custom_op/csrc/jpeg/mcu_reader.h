// Decodes any MCU of a baseline scan, starting at the nearest restart marker before it.
#pragma once

#include <vector>

#include "jpeg/huffman.h"
#include "jpeg/restarts.h"

namespace custom_op {

class McuReader {
 public:
  // Copies the tables and the block layout from `cinfo`, which must have started decompression with
  // the same tables. Returns false if the restart markers cannot be trusted.
  bool start(const jpeg_decompress_struct& cinfo, Bytes jpeg, const Header& header);

  // Moves to the MCU with this index, in scan order. Returns false if the data is damaged.
  bool seek(int64_t mcu);
  // Decodes the MCU into `blocks`, which must be all zeros, and moves to the next MCU. Returns
  // false if the data is damaged.
  bool decode(JBLOCKROW* blocks) { return take<true>(blocks); }

 private:
  struct Block {
    int component;
    const HuffmanTable *dc, *ac;
  };

  template <bool kKeep>
  bool take(JBLOCKROW* blocks);
  void enter(int64_t segment);

  Bytes jpeg_{};
  int64_t interval_ = 0;
  std::vector<Range> segments_;
  std::array<HuffmanTable, NUM_HUFF_TBLS> dc_, ac_;
  std::array<Block, D_MAX_BLOCKS_IN_MCU> layout_{};
  int block_count_ = 0;

  BitReader bits_;
  std::array<int, MAX_COMPS_IN_SCAN> predictors_{};
  int64_t next_ = 0;         // index of the next MCU
  int64_t segment_end_ = 0;  // index of the first MCU after the current segment
};

}  // namespace custom_op
