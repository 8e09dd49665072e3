#include "jpeg/mcu_reader.h"

namespace custom_op {

bool McuReader::start(const jpeg_decompress_struct& cinfo, Bytes jpeg, const Header& header) {
  jpeg_ = jpeg;
  block_count_ = cinfo.blocks_in_MCU;
  for (int i = 0; i < block_count_; ++i) {
    const int index = cinfo.MCU_membership[i];
    const auto& component = *cinfo.cur_comp_info[index];
    HuffmanTable& dc = dc_[component.dc_tbl_no];
    HuffmanTable& ac = ac_[component.ac_tbl_no];
    dc.build(*cinfo.dc_huff_tbl_ptrs[component.dc_tbl_no], true);
    ac.build(*cinfo.ac_huff_tbl_ptrs[component.ac_tbl_no], false);
    layout_[i] = {index, &dc, &ac};
  }
  if (!index_restarts(jpeg, header, segments_)) return false;
  interval_ = header.restart_interval;
  if (interval_ == 0) interval_ = header.mcu_rows * header.mcus_per_row;
  enter(0);
  return true;
}

void McuReader::enter(int64_t segment) {
  const Range range = segments_[static_cast<size_t>(segment)];
  bits_ = BitReader(jpeg_.data + range.begin, jpeg_.data + range.end);
  predictors_.fill(0);
  next_ = segment * interval_;
  segment_end_ = next_ + interval_;
}

template <bool kKeep>
bool McuReader::take(JBLOCKROW* blocks) {
  if (next_ == segment_end_) {
    if (!bits_.exhausted()) return false;
    enter(next_ / interval_);
  }
  BitReader bits = bits_;
  for (int i = 0; i < block_count_; ++i) {
    const Block& block = layout_[i];
    int& predictor = predictors_[block.component];
    const bool good = kKeep ? decode_block(bits, *block.dc, *block.ac, predictor, *blocks[i])
                            : skip_block(bits, *block.dc, *block.ac, predictor);
    if (!good) return false;
  }
  bits_ = bits;
  ++next_;
  return !bits.overrun();
}

template bool McuReader::take<true>(JBLOCKROW*);

bool McuReader::seek(int64_t mcu) {
  if (mcu < next_ || mcu >= segment_end_) enter(mcu / interval_);
  while (next_ < mcu) {
    if (!take<false>(nullptr)) return false;
  }
  return true;
}

}  // namespace custom_op
