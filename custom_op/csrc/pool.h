// The batch operator's threads.
#pragma once

#include <cstdint>
#include <functional>

namespace custom_op {

// Calls work(i) once for every i < count, on the calling thread and up to threads - 1 others; each
// takes the next i when it is done with its last. `work` must not throw. `threads` 0 means one for
// every CPU this process may use. Threads start when they are first needed, stay for later calls,
// and are started anew in a forked child.
void for_each_index(int64_t count, int64_t threads, const std::function<void(int64_t)>& work);

}  // namespace custom_op
