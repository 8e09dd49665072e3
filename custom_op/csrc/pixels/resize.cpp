#include "pixels/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "pixels/filter.h"

namespace custom_op {

void AxisWeights::compute(const Axis& axis, int64_t size) {
  const double scale = axis.length / static_cast<double>(size);
  const double support = std::max(scale, 1.0);
  const auto most = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
  stride_ = (most + 1) / 2 * 2;
  longest_ = 0;
  first_.resize(static_cast<size_t>(size));
  count_.resize(static_cast<size_t>(size));
  weights_.assign(static_cast<size_t>(size * stride_), 0);
  exact_.resize(static_cast<size_t>(most));
  for (int64_t i = 0; i < size; ++i) {
    const double centre = axis.origin + scale * (static_cast<double>(i) + 0.5);
    const auto first = std::max<int64_t>(static_cast<int64_t>(centre - support + 0.5), 0);
    const auto last = std::min<int64_t>(static_cast<int64_t>(centre + support + 0.5), axis.samples);
    const int64_t count = std::min(last - first, most);
    double total = 0;
    for (int64_t k = 0; k < count; ++k) {
      const double distance = (static_cast<double>(first + k) - centre + 0.5) / support;
      total += exact_[static_cast<size_t>(k)] = std::max(0.0, 1.0 - std::abs(distance));
    }
    first_[static_cast<size_t>(i)] = first;
    count_[static_cast<size_t>(i)] = count;
    longest_ = std::max(longest_, count);
    quantise(exact_.data(), total, count, weights_.data() + i * stride_);
  }
}

void AxisWeights::quantise(const double* exact, double total, int64_t count,
                           int16_t* weights) const {
  int rest = 1 << kBits, heaviest = 0;
  for (int64_t k = 0; k < count; ++k) {
    weights[k] = static_cast<int16_t>(std::lround(exact[k] / total * (1 << kBits)));
    rest -= weights[k];
    if (weights[k] > weights[heaviest]) heaviest = static_cast<int>(k);
  }
  // The weights must sum to 1 << kBits, so that a uniform area keeps its value.
  weights[heaviest] = static_cast<int16_t>(weights[heaviest] + rest);
}

void Resizer::configure(const Axis& vertical, const Axis& horizontal, int64_t size, bool mirror,
                        ResizedRows& out) {
  vertical_.compute(vertical, size);
  horizontal_.compute(horizontal, size);
  size_ = size;
  out_ = &out;
  row_values_ = horizontal.samples * 3;
  stride_ = row_values_ + kRowPadding;
  capacity_ = vertical_.longest() + 1;
  ring_.resize(static_cast<size_t>(stride_ * capacity_));
  arrange_horizontal_weights(mirror);
  // Taps with zero weight may lie past the end of the row.
  line_.resize(static_cast<size_t>(stride_ + 3 * taps_));
  resized_.resize(static_cast<size_t>((size + 1) * 3 + 1));
  rows_.resize(static_cast<size_t>(vertical_.longest() + 1));
}

void Resizer::arrange_horizontal_weights(bool mirror) {
  taps_ = (horizontal_.longest() + 1) / 2 * 2;
  const int64_t pixels = (size_ + 1) / 2 * 2;
  first_.assign(static_cast<size_t>(pixels), 0);
  arranged_.assign(static_cast<size_t>(pixels / 2 * taps_ / 2 * kWeightsPerTapPair), 0);
  for (int64_t x = 0; x < size_; ++x) {
    const int64_t from = mirror ? size_ - 1 - x : x;
    first_[static_cast<size_t>(x)] = static_cast<int32_t>(horizontal_.first(from));
    const int16_t* weights = horizontal_.weights(from);
    int16_t* to = arranged_.data() + x / 2 * (taps_ / 2) * kWeightsPerTapPair + x % 2 * 8;
    for (int64_t k = 0; k < taps_; k += 2, to += kWeightsPerTapPair) {
      for (int i = 0; i < 4; ++i) std::copy_n(weights + k, 2, to + 2 * i);
    }
  }
}

void Resizer::begin() { received_ = emitted_ = 0; }

uint8_t* Resizer::next() { return ring_.data() + received_ % capacity_ * stride_; }

void Resizer::written() {
  ++received_;
  while (emitted_ < size_ && vertical_.first(emitted_) + vertical_.count(emitted_) <= received_) {
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
  filter_horizontally(line_.data(), first_.data(), arranged_.data(), taps_, (size_ + 1) / 2 * 2,
                      resized_.data());
  out_->resized(y, resized_.data());
}

}  // namespace custom_op
