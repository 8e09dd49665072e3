// Resizes a crop from its samples: chroma is not upsampled to the size of the crop, and color is
// converted once for every row of the result.
#pragma once

#include <array>
#include <vector>

#include "aligned.h"
#include "resize/resize.h"

namespace custom_op {

// Note [Late color]
// Upsampling, the conversion of colors and resizing are weighted sums, so their order hardly
// matters: only rounding differs. Here the vertical filter comes first, on the samples of each
// component. The upsampling of chroma rows is part of its weights. What follows happens once per
// row of the result instead of once per row of the crop: samples/ycbcr.h upsamples chroma columns
// and converts colors, then the horizontal filter runs. Weights have 7 bits instead of 14, so that
// processors multiply bytes.
class LateColorResizer final : public SampleSink {
 public:
  // With `mirror`, the output rows run from right to left.
  void configure(const Box& box, int64_t size, bool mirror, ResizedRows& out);
  void begin(const SamplePlanes& planes) override;
  int64_t rows_kept() const override { return vertical_.longest() + 2; }
  void decoded(int64_t end) override;

 private:
  void arrange_columns(bool mirror);
  bool is_ready(int64_t y, int64_t end) const;
  void emit(int64_t y);
  int64_t gather(size_t component, const AxisWeights& weights, int64_t y, int64_t origin);
  void convert(int64_t y);

  Box box_{};
  int64_t size_ = 0;
  AxisWeights vertical_, half_vertical_, horizontal_;
  ByteWeights vertical_bytes_, half_vertical_bytes_, horizontal_bytes_;
  AlignedVector<int8_t> columns_;
  std::vector<int32_t> starts_;
  SamplePlanes planes_{};
  ResizedRows* out_ = nullptr;
  int64_t emitted_ = 0;
  std::vector<const uint8_t*> rows_;
  std::array<AlignedVector<uint8_t>, 3> samples_;
  std::array<AlignedVector<uint16_t>, 3> sums_;
  AlignedVector<uint8_t> rgb_, row_;
};

}  // namespace custom_op
