#include "resize/resize.h"

#include <algorithm>

#include "resize/filter.h"

namespace custom_op {

void HorizontalFilter::configure(int64_t length, int64_t size, bool mirror) {
  weights_.compute(length, size);
  taps_ = (weights_.longest() + 1) / 2 * 2;
  pixels_ = pixels_for(size);
  starts_.assign(static_cast<size_t>(pixels_), 0);
  arranged_.assign(static_cast<size_t>(pixels_ / 2 * taps_ / 2 * kWeightsPerTapPair), 0);
  row_.resize(static_cast<size_t>(pixels_ * 3 + kPixelPadding));
  for (int64_t x = 0; x < size; ++x) {
    const int64_t from = mirror ? size - 1 - x : x;
    starts_[static_cast<size_t>(x)] = static_cast<int32_t>(3 * weights_.first(from));
    const int16_t* weights = weights_.weights(from);
    int16_t* to = arranged_.data() + x / 2 * (taps_ / 2) * kWeightsPerTapPair + x % 2 * 8;
    for (int64_t k = 0; k < taps_; k += 2, to += kWeightsPerTapPair) {
      for (int i = 0; i < 4; ++i) std::copy_n(weights + k, 2, to + 2 * i);
    }
  }
}

const uint8_t* HorizontalFilter::apply(const int16_t* line) {
  filter_horizontally(line, starts_.data(), arranged_.data(), taps_, pixels_, row_.data());
  return row_.data();
}

void Resizer::configure(int64_t height, int64_t width, int64_t size, bool mirror,
                        ResizedRows& out) {
  vertical_.compute(height, size);
  horizontal_.configure(width, size, mirror);
  out_ = &out;
  row_values_ = width * 3;
  stride_ = aligned_stride(row_values_ + kRowPadding);
  capacity_ = vertical_.longest() + 1;
  ring_.resize(static_cast<size_t>(stride_ * capacity_));
  line_.resize(static_cast<size_t>(stride_ + horizontal_.padding()));
  rows_.resize(static_cast<size_t>(vertical_.longest() + 1));
}

void Resizer::begin() { received_ = emitted_ = 0; }

uint8_t* Resizer::next() { return ring_.data() + received_ % capacity_ * stride_; }

void Resizer::written() {
  ++received_;
  while (emitted_ < vertical_.size() &&
         vertical_.first(emitted_) + vertical_.count(emitted_) <= received_) {
    emit(emitted_++);
  }
}

void Resizer::emit(int64_t y) {
  const int64_t count = vertical_.count(y), taps = (count + 1) / 2 * 2;
  for (int64_t k = 0; k < taps; ++k) {
    const int64_t row = vertical_.first(y) + std::min(k, count - 1);
    rows_[static_cast<size_t>(k)] = ring_.data() + row % capacity_ * stride_;
  }
  filter_vertically(rows_.data(), vertical_.weights(y), taps, row_values_, line_.data());
  out_->resized(y, horizontal_.apply(line_.data()));
}

}  // namespace custom_op
