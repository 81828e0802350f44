// Stands in for the device's library of kernels, which has an interface like this one: a handle,
// descriptions of what is computed, workspaces, weights in an order of its own, and codes.
#pragma once

#include <cstddef>

extern "C" {

typedef struct lib_context* lib_handle;
typedef enum { LIB_OK, LIB_BAD_ARGUMENT, LIB_NO_MEMORY, LIB_FAILED } lib_code;

const char* lib_words(lib_code code);
lib_code lib_create(lib_handle* out);
void lib_destroy(lib_handle handle);

// result[rows, columns] = activate(left[rows, depth] × weight + bias[columns]), of float32,
// row-major; `bias` may be null.
typedef enum { LIB_IDENTITY, LIB_RELU } lib_activation;
typedef struct {
  long long rows, columns, depth;
  int has_bias;
  lib_activation activation;
} lib_product;

size_t lib_workspace(lib_handle handle, const lib_product* product);
// A weight [depth, columns], or its transpose, in the order that products read it.
size_t lib_packed_bytes(long long depth, long long columns);
lib_code lib_pack(lib_handle handle, long long depth, long long columns, const float* weight,
                  long long row_stride, long long column_stride, void* packed);
lib_code lib_unpack(lib_handle handle, long long depth, long long columns, const void* packed,
                    float* weight, long long row_stride, long long column_stride);
lib_code lib_multiply(lib_handle handle, const lib_product* product, const float* left,
                      const void* packed, const float* bias, float* result, void* workspace);
}
