// The second byte of each JPEG marker; the first is FF.
#pragma once

#include <cstdint>

namespace custom_op {

inline constexpr uint8_t kSof0 = 0xC0, kSof1 = 0xC1, kDht = 0xC4, kDac = 0xCC, kRst0 = 0xD0,
                         kRst7 = 0xD7, kSos = 0xDA, kDqt = 0xDB, kDri = 0xDD, kApp0 = 0xE0,
                         kApp1 = 0xE1, kApp14 = 0xEE, kApp15 = 0xEF, kCom = 0xFE;

}  // namespace custom_op
