#include "resize/axis_weights.h"

#include <algorithm>
#include <cmath>

#include "types.h"

namespace custom_op {

void AxisWeights::compute(int64_t length, int64_t size) {
  const double scale = static_cast<double>(length) / static_cast<double>(size);
  const double support = std::max(scale, 1.0);
  const auto most = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
  stride_ = (most + 1) / 2 * 2;
  longest_ = 0;
  first_.resize(static_cast<size_t>(size));
  count_.resize(static_cast<size_t>(size));
  weights_.assign(static_cast<size_t>(size * stride_), 0);
  exact_.resize(static_cast<size_t>(most));
  for (int64_t i = 0; i < size; ++i) {
    const double centre = scale * (static_cast<double>(i) + 0.5);
    const auto first = std::max<int64_t>(static_cast<int64_t>(centre - support + 0.5), 0);
    const auto last = std::min<int64_t>(static_cast<int64_t>(centre + support + 0.5), length);
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
    weights[k] = static_cast<int16_t>(exact[k] / total * (1 << kBits) + 0.5);
    rest -= weights[k];
    if (weights[k] > weights[heaviest]) heaviest = static_cast<int>(k);
  }
  // The weights must sum to 1 << kBits, so that a uniform area keeps its value.
  weights[heaviest] = static_cast<int16_t>(weights[heaviest] + rest);
}

void AxisWeights::halve(const AxisWeights& pixels, int64_t origin, int64_t samples) {
  const int64_t most = pixels.longest_ / 2 + 2;
  stride_ = (most + 1) / 2 * 2;
  longest_ = 0;
  first_.resize(pixels.first_.size());
  count_.resize(pixels.first_.size());
  weights_.assign(static_cast<size_t>(size() * stride_), 0);
  for (int64_t i = 0; i < size(); ++i) {
    const int64_t begin = origin + pixels.first(i), end = begin + pixels.count(i);
    const int64_t first = std::max<int64_t>(begin / 2 - (begin % 2 == 0 ? 1 : 0), 0);
    const int64_t last = std::min(end / 2, samples - 1);
    exact_.assign(static_cast<size_t>(most), 0);
    for (int64_t pixel = begin; pixel < end; ++pixel) {
      const double weight = pixels.weights(i)[pixel - begin];
      const int64_t nearest = pixel / 2, next = nearest + (pixel % 2 == 0 ? -1 : 1);
      exact_[static_cast<size_t>(nearest - first)] += 0.75 * weight;
      exact_[static_cast<size_t>(std::clamp<int64_t>(next, 0, samples - 1) - first)] +=
          0.25 * weight;
    }
    const int64_t count = last - first + 1;
    first_[static_cast<size_t>(i)] = first;
    count_[static_cast<size_t>(i)] = count;
    longest_ = std::max(longest_, count);
    quantise(exact_.data(), 1 << kBits, count, weights_.data() + i * stride_);
  }
}

void ByteWeights::round(const AxisWeights& weights) {
  constexpr int kShift = AxisWeights::kBits - kBits, kMost = 127;
  groups_ = divide_up(std::max<int64_t>(weights.longest(), 2), kGroup);
  weights_.assign(static_cast<size_t>(weights.size() * groups_ * kGroup), 0);
  for (int64_t i = 0; i < weights.size(); ++i) {
    const int16_t* exact = weights.weights(i);
    int8_t* to = weights_.data() + i * groups_ * kGroup;
    int rest = 1 << kBits, heaviest = 0;
    for (int64_t k = 0; k < weights.count(i); ++k) {
      const int rounded = (exact[k] + (1 << (kShift - 1))) >> kShift;
      to[k] = static_cast<int8_t>(std::min(rounded, kMost));
      rest -= to[k];
      if (to[k] > to[heaviest]) heaviest = static_cast<int>(k);
    }
    const int moved = std::min(rest, kMost - to[heaviest]);
    to[heaviest] = static_cast<int8_t>(to[heaviest] + moved);
    to[heaviest == 0 ? 1 : heaviest - 1] += static_cast<int8_t>(rest - moved);
  }
}

}  // namespace custom_op
