#include "samples/upsample.h"

#include "samples/padding.h"

namespace custom_op {
namespace {

// Calls each(i) for every i < count and up to the next multiple of kAtOnce, so that compilers
// vectorize the inner loop without a remainder.
template <typename Each>
void for_each(int64_t count, Each each) {
  constexpr int64_t kAtOnce = kSamplePadding;
  for (int64_t start = 0; start < count; start += kAtOnce) {
    for (int64_t i = start; i < start + kAtOnce; ++i) each(i);
  }
}

uint16_t pair(int left, int right) { return static_cast<uint16_t>(left | right << 8); }

}  // namespace

void double_width(const uint8_t* __restrict samples, int64_t count, uint16_t* __restrict out) {
  for_each(count, [=](int64_t i) {
    const int nearest = 3 * samples[i];
    out[i] = pair((nearest + samples[i - 1] + 1) >> 2, (nearest + samples[i + 1] + 2) >> 2);
  });
}

void double_height(const uint8_t* __restrict near, const uint8_t* __restrict far, bool below,
                   int64_t count, uint8_t* __restrict out) {
  const uint16_t rounding = below ? 2 : 1;
  for_each(count, [=](int64_t i) {
    out[i] = static_cast<uint8_t>((3 * near[i] + far[i] + rounding) >> 2);
  });
}

void double_both(const uint8_t* __restrict near, const uint8_t* __restrict far, int64_t count,
                 uint16_t* __restrict out) {
  const auto sum = [=](int64_t i) { return static_cast<uint16_t>(3 * near[i] + far[i]); };
  for_each(count, [=](int64_t i) {
    const auto nearest = static_cast<uint16_t>(3 * sum(i));
    const auto left = static_cast<uint16_t>(nearest + sum(i - 1) + 8);
    const auto right = static_cast<uint16_t>(nearest + sum(i + 1) + 7);
    out[i] = pair(left >> 4, right >> 4);
  });
}

}  // namespace custom_op
