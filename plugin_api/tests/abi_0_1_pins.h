/* Layout of plugin ABI 0.1 on 64-bit targets, written by scripts/make_abi_pins.py when that
 * version was current. Compiles as C99, C11 and C++20; compiling it is the check. */
#ifndef BACKPLANE_ABI_0_1_PINS_H_
#define BACKPLANE_ABI_0_1_PINS_H_

#include <backplane/plugin.h>

#ifndef BP_PIN
#if defined(__cplusplus)
#define BP_PIN(what) static_assert(what, #what)
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define BP_PIN(what) _Static_assert(what, #what)
#else /* C99: an array of negative size */
#define BP_PIN_JOIN(a, b) a##b
#define BP_PIN_NAME(line) BP_PIN_JOIN(bp_pin_at_line_, line)
#define BP_PIN(what) extern char BP_PIN_NAME(__LINE__)[(what) ? 1 : -1]
#endif
#define BP_PIN_FIELD(type, field, offset, size) \
  BP_PIN(offsetof(type, field) == (offset) && sizeof(((type*)0)->field) == (size))
#endif

/* bp_string (frozen) */
BP_PIN(sizeof(bp_string) == 16);
BP_PIN_FIELD(bp_string, data, 0, 8);
BP_PIN_FIELD(bp_string, size, 8, 8);

/* bp_dtype (frozen) */
BP_PIN(sizeof(bp_dtype) == 4);
BP_PIN_FIELD(bp_dtype, code, 0, 1);
BP_PIN_FIELD(bp_dtype, bits, 1, 1);
BP_PIN_FIELD(bp_dtype, lanes, 2, 2);

/* bp_native_handle (frozen) */
BP_PIN(sizeof(bp_native_handle) == 32);
BP_PIN_FIELD(bp_native_handle, kind, 0, 4);
BP_PIN_FIELD(bp_native_handle, device, 4, 4);
BP_PIN_FIELD(bp_native_handle, handle, 8, 8);
BP_PIN_FIELD(bp_native_handle, offset_bytes, 16, 8);
BP_PIN_FIELD(bp_native_handle, size_bytes, 24, 8);

/* bp_range (frozen) */
BP_PIN(sizeof(bp_range) == 32);
BP_PIN_FIELD(bp_range, buffer, 0, 8);
BP_PIN_FIELD(bp_range, host, 8, 8);
BP_PIN_FIELD(bp_range, offset_bytes, 16, 8);
BP_PIN_FIELD(bp_range, size_bytes, 24, 8);

/* bp_option (frozen) */
BP_PIN(sizeof(bp_option) == 56);
BP_PIN_FIELD(bp_option, key, 0, 16);
BP_PIN_FIELD(bp_option, kind, 16, 4);
BP_PIN_FIELD(bp_option, reserved, 20, 4);
BP_PIN_FIELD(bp_option, integer, 24, 8);
BP_PIN_FIELD(bp_option, real, 32, 8);
BP_PIN_FIELD(bp_option, text, 40, 16);

/* bp_options (frozen) */
BP_PIN(sizeof(bp_options) == 16);
BP_PIN_FIELD(bp_options, items, 0, 8);
BP_PIN_FIELD(bp_options, count, 8, 8);

/* bp_dim_class (element) */
BP_PIN(sizeof(bp_dim_class) >= 64);
BP_PIN_FIELD(bp_dim_class, min, 0, 8);
BP_PIN_FIELD(bp_dim_class, max, 8, 8);
BP_PIN_FIELD(bp_dim_class, divisor, 16, 8);
BP_PIN_FIELD(bp_dim_class, hint, 24, 8);
BP_PIN_FIELD(bp_dim_class, name, 32, 16);
BP_PIN_FIELD(bp_dim_class, expression, 48, 16);

/* bp_layout (frozen) */
BP_PIN(sizeof(bp_layout) == 16);
BP_PIN_FIELD(bp_layout, kind, 0, 4);
BP_PIN_FIELD(bp_layout, reserved, 4, 4);
BP_PIN_FIELD(bp_layout, layout_id, 8, 8);

/* bp_value (element) */
BP_PIN(sizeof(bp_value) >= 80);
BP_PIN_FIELD(bp_value, id, 0, 4);
BP_PIN_FIELD(bp_value, rank, 4, 4);
BP_PIN_FIELD(bp_value, flags, 8, 8);
BP_PIN_FIELD(bp_value, dtype, 16, 4);
BP_PIN_FIELD(bp_value, first_dim, 20, 4);
BP_PIN_FIELD(bp_value, producer, 24, 4);
BP_PIN_FIELD(bp_value, alias_of, 28, 4);
BP_PIN_FIELD(bp_value, mutation_of, 32, 4);
BP_PIN_FIELD(bp_value, layout, 40, 16);
BP_PIN_FIELD(bp_value, version, 56, 8);
BP_PIN_FIELD(bp_value, data, 64, 8);
BP_PIN_FIELD(bp_value, data_bytes, 72, 8);

/* bp_attribute (element) */
BP_PIN(sizeof(bp_attribute) >= 96);
BP_PIN_FIELD(bp_attribute, name, 0, 16);
BP_PIN_FIELD(bp_attribute, kind, 16, 4);
BP_PIN_FIELD(bp_attribute, dtype, 20, 4);
BP_PIN_FIELD(bp_attribute, integer, 24, 8);
BP_PIN_FIELD(bp_attribute, real, 32, 8);
BP_PIN_FIELD(bp_attribute, text, 40, 16);
BP_PIN_FIELD(bp_attribute, integers, 56, 8);
BP_PIN_FIELD(bp_attribute, reals, 64, 8);
BP_PIN_FIELD(bp_attribute, count, 72, 8);
BP_PIN_FIELD(bp_attribute, is_class, 80, 4);
BP_PIN_FIELD(bp_attribute, reserved, 84, 4);
BP_PIN_FIELD(bp_attribute, class_flags, 88, 8);

/* bp_op (element) */
BP_PIN(sizeof(bp_op) >= 24);
BP_PIN_FIELD(bp_op, name, 0, 16);
BP_PIN_FIELD(bp_op, version, 16, 4);
BP_PIN_FIELD(bp_op, reserved, 20, 4);

/* bp_node (element) */
BP_PIN(sizeof(bp_node) >= 64);
BP_PIN_FIELD(bp_node, id, 0, 4);
BP_PIN_FIELD(bp_node, op, 4, 4);
BP_PIN_FIELD(bp_node, first_operand, 8, 4);
BP_PIN_FIELD(bp_node, operand_count, 12, 4);
BP_PIN_FIELD(bp_node, first_result, 16, 4);
BP_PIN_FIELD(bp_node, result_count, 20, 4);
BP_PIN_FIELD(bp_node, list_first, 24, 4);
BP_PIN_FIELD(bp_node, list_count, 28, 4);
BP_PIN_FIELD(bp_node, first_attribute, 32, 4);
BP_PIN_FIELD(bp_node, attribute_count, 36, 4);
BP_PIN_FIELD(bp_node, effects, 40, 8);
BP_PIN_FIELD(bp_node, location, 48, 16);

/* bp_graph (grows) */
BP_PIN(sizeof(bp_graph) >= 216);
BP_PIN_FIELD(bp_graph, struct_size, 0, 8);
BP_PIN_FIELD(bp_graph, name, 8, 16);
BP_PIN_FIELD(bp_graph, nodes, 24, 8);
BP_PIN_FIELD(bp_graph, node_count, 32, 8);
BP_PIN_FIELD(bp_graph, node_stride, 40, 8);
BP_PIN_FIELD(bp_graph, values, 48, 8);
BP_PIN_FIELD(bp_graph, value_count, 56, 8);
BP_PIN_FIELD(bp_graph, value_stride, 64, 8);
BP_PIN_FIELD(bp_graph, attributes, 72, 8);
BP_PIN_FIELD(bp_graph, attribute_count, 80, 8);
BP_PIN_FIELD(bp_graph, attribute_stride, 88, 8);
BP_PIN_FIELD(bp_graph, ops, 96, 8);
BP_PIN_FIELD(bp_graph, op_count, 104, 8);
BP_PIN_FIELD(bp_graph, op_stride, 112, 8);
BP_PIN_FIELD(bp_graph, dim_classes, 120, 8);
BP_PIN_FIELD(bp_graph, dim_class_count, 128, 8);
BP_PIN_FIELD(bp_graph, dim_class_stride, 136, 8);
BP_PIN_FIELD(bp_graph, indices, 144, 8);
BP_PIN_FIELD(bp_graph, index_count, 152, 8);
BP_PIN_FIELD(bp_graph, dims, 160, 8);
BP_PIN_FIELD(bp_graph, strides, 168, 8);
BP_PIN_FIELD(bp_graph, dim_count, 176, 8);
BP_PIN_FIELD(bp_graph, inputs, 184, 8);
BP_PIN_FIELD(bp_graph, input_count, 192, 8);
BP_PIN_FIELD(bp_graph, outputs, 200, 8);
BP_PIN_FIELD(bp_graph, output_count, 208, 8);

/* bp_claim (grows) */
BP_PIN(sizeof(bp_claim) >= 72);
BP_PIN_FIELD(bp_claim, struct_size, 0, 8);
BP_PIN_FIELD(bp_claim, node_ids, 8, 8);
BP_PIN_FIELD(bp_claim, node_count, 16, 8);
BP_PIN_FIELD(bp_claim, flags, 24, 8);
BP_PIN_FIELD(bp_claim, time_ns, 32, 8);
BP_PIN_FIELD(bp_claim, launch_ns, 40, 8);
BP_PIN_FIELD(bp_claim, workspace_bytes, 48, 8);
BP_PIN_FIELD(bp_claim, read_bytes, 56, 8);
BP_PIN_FIELD(bp_claim, written_bytes, 64, 8);

/* bp_error_args (grows) */
BP_PIN(sizeof(bp_error_args) >= 88);
BP_PIN_FIELD(bp_error_args, struct_size, 0, 8);
BP_PIN_FIELD(bp_error_args, code, 8, 4);
BP_PIN_FIELD(bp_error_args, line, 12, 4);
BP_PIN_FIELD(bp_error_args, message, 16, 16);
BP_PIN_FIELD(bp_error_args, file, 32, 16);
BP_PIN_FIELD(bp_error_args, function, 48, 16);
BP_PIN_FIELD(bp_error_args, node_ids, 64, 8);
BP_PIN_FIELD(bp_error_args, node_count, 72, 8);
BP_PIN_FIELD(bp_error_args, payload, 80, 8);

/* bp_profile_range (grows) */
BP_PIN(sizeof(bp_profile_range) >= 80);
BP_PIN_FIELD(bp_profile_range, struct_size, 0, 8);
BP_PIN_FIELD(bp_profile_range, name, 8, 16);
BP_PIN_FIELD(bp_profile_range, begin_ns, 24, 8);
BP_PIN_FIELD(bp_profile_range, end_ns, 32, 8);
BP_PIN_FIELD(bp_profile_range, uncertainty_ns, 40, 8);
BP_PIN_FIELD(bp_profile_range, call_id, 48, 8);
BP_PIN_FIELD(bp_profile_range, node_ids, 56, 8);
BP_PIN_FIELD(bp_profile_range, node_count, 64, 8);
BP_PIN_FIELD(bp_profile_range, device, 72, 4);
BP_PIN_FIELD(bp_profile_range, queue, 76, 4);

/* bp_host_api (grows) */
BP_PIN(sizeof(bp_host_api) >= 224);
BP_PIN_FIELD(bp_host_api, struct_size, 0, 8);
BP_PIN_FIELD(bp_host_api, version, 8, 4);
BP_PIN_FIELD(bp_host_api, reserved, 12, 4);
BP_PIN_FIELD(bp_host_api, host, 16, 8);
BP_PIN_FIELD(bp_host_api, error_create, 24, 8);
BP_PIN_FIELD(bp_host_api, error_retain, 32, 8);
BP_PIN_FIELD(bp_host_api, error_release, 40, 8);
BP_PIN_FIELD(bp_host_api, error_code, 48, 8);
BP_PIN_FIELD(bp_host_api, error_message, 56, 8);
BP_PIN_FIELD(bp_host_api, error_visit, 64, 8);
BP_PIN_FIELD(bp_host_api, log, 72, 8);
BP_PIN_FIELD(bp_host_api, host_allocate, 80, 8);
BP_PIN_FIELD(bp_host_api, host_free, 88, 8);
BP_PIN_FIELD(bp_host_api, thread_count, 96, 8);
BP_PIN_FIELD(bp_host_api, parallel_for, 104, 8);
BP_PIN_FIELD(bp_host_api, clock_ns, 112, 8);
BP_PIN_FIELD(bp_host_api, span_begin, 120, 8);
BP_PIN_FIELD(bp_host_api, span_end, 128, 8);
BP_PIN_FIELD(bp_host_api, profile_add, 136, 8);
BP_PIN_FIELD(bp_host_api, cache_get, 144, 8);
BP_PIN_FIELD(bp_host_api, cache_put, 152, 8);
BP_PIN_FIELD(bp_host_api, bytes_create, 160, 8);
BP_PIN_FIELD(bp_host_api, bytes_view, 168, 8);
BP_PIN_FIELD(bp_host_api, bytes_release, 176, 8);
BP_PIN_FIELD(bp_host_api, is_cancelled, 184, 8);
BP_PIN_FIELD(bp_host_api, claim_add, 192, 8);
BP_PIN_FIELD(bp_host_api, refuse_add, 200, 8);
BP_PIN_FIELD(bp_host_api, bytes_write, 208, 8);
BP_PIN_FIELD(bp_host_api, find_experimental, 216, 8);

/* bp_device_rate (element) */
BP_PIN(sizeof(bp_device_rate) >= 16);
BP_PIN_FIELD(bp_device_rate, dtype, 0, 4);
BP_PIN_FIELD(bp_device_rate, reserved, 4, 4);
BP_PIN_FIELD(bp_device_rate, flop_per_s, 8, 8);

/* bp_device_info (grows) */
BP_PIN(sizeof(bp_device_info) >= 208);
BP_PIN_FIELD(bp_device_info, struct_size, 0, 8);
BP_PIN_FIELD(bp_device_info, kind, 8, 4);
BP_PIN_FIELD(bp_device_info, reserved, 12, 4);
BP_PIN_FIELD(bp_device_info, flags, 16, 8);
BP_PIN_FIELD(bp_device_info, name, 24, 16);
BP_PIN_FIELD(bp_device_info, architecture, 40, 16);
BP_PIN_FIELD(bp_device_info, driver, 56, 16);
BP_PIN_FIELD(bp_device_info, unique_id, 72, 16);
BP_PIN_FIELD(bp_device_info, memory_bytes, 88, 8);
BP_PIN_FIELD(bp_device_info, buffer_limit_bytes, 96, 8);
BP_PIN_FIELD(bp_device_info, buffer_alignment_bytes, 104, 4);
BP_PIN_FIELD(bp_device_info, offset_alignment_bytes, 108, 4);
BP_PIN_FIELD(bp_device_info, memory_bytes_per_s, 112, 8);
BP_PIN_FIELD(bp_device_info, to_device_bytes_per_s, 120, 8);
BP_PIN_FIELD(bp_device_info, from_device_bytes_per_s, 128, 8);
BP_PIN_FIELD(bp_device_info, copy_latency_ns, 136, 8);
BP_PIN_FIELD(bp_device_info, launch_latency_ns, 144, 8);
BP_PIN_FIELD(bp_device_info, rates, 152, 8);
BP_PIN_FIELD(bp_device_info, rate_count, 160, 8);
BP_PIN_FIELD(bp_device_info, rate_stride, 168, 8);
BP_PIN_FIELD(bp_device_info, memory_kinds, 176, 8);
BP_PIN_FIELD(bp_device_info, memory_kind_count, 184, 8);
BP_PIN_FIELD(bp_device_info, native_kinds, 192, 8);
BP_PIN_FIELD(bp_device_info, native_kind_count, 200, 8);

/* bp_device_counters (grows) */
BP_PIN(sizeof(bp_device_counters) >= 56);
BP_PIN_FIELD(bp_device_counters, struct_size, 0, 8);
BP_PIN_FIELD(bp_device_counters, health, 8, 4);
BP_PIN_FIELD(bp_device_counters, reset_count, 12, 4);
BP_PIN_FIELD(bp_device_counters, live_bytes, 16, 8);
BP_PIN_FIELD(bp_device_counters, peak_bytes, 24, 8);
BP_PIN_FIELD(bp_device_counters, internal_bytes, 32, 8);
BP_PIN_FIELD(bp_device_counters, hidden_copy_bytes, 40, 8);
BP_PIN_FIELD(bp_device_counters, hidden_copy_count, 48, 8);

/* bp_import_args (grows) */
BP_PIN(sizeof(bp_import_args) >= 56);
BP_PIN_FIELD(bp_import_args, struct_size, 0, 8);
BP_PIN_FIELD(bp_import_args, memory, 8, 32);
BP_PIN_FIELD(bp_import_args, mode, 40, 4);
BP_PIN_FIELD(bp_import_args, memory_kind, 44, 4);
BP_PIN_FIELD(bp_import_args, signal, 48, 8);

/* bp_order (frozen) */
BP_PIN(sizeof(bp_order) == 32);
BP_PIN_FIELD(bp_order, stream, 0, 8);
BP_PIN_FIELD(bp_order, waits, 8, 8);
BP_PIN_FIELD(bp_order, wait_count, 16, 8);
BP_PIN_FIELD(bp_order, signal, 24, 8);

/* bp_copy_args (grows) */
BP_PIN(sizeof(bp_copy_args) >= 104);
BP_PIN_FIELD(bp_copy_args, struct_size, 0, 8);
BP_PIN_FIELD(bp_copy_args, source, 8, 32);
BP_PIN_FIELD(bp_copy_args, target, 40, 32);
BP_PIN_FIELD(bp_copy_args, order, 72, 32);

/* bp_tensor_desc (grows) */
BP_PIN(sizeof(bp_tensor_desc) >= 48);
BP_PIN_FIELD(bp_tensor_desc, struct_size, 0, 8);
BP_PIN_FIELD(bp_tensor_desc, dtype, 8, 4);
BP_PIN_FIELD(bp_tensor_desc, rank, 12, 4);
BP_PIN_FIELD(bp_tensor_desc, dims, 16, 8);
BP_PIN_FIELD(bp_tensor_desc, strides, 24, 8);
BP_PIN_FIELD(bp_tensor_desc, layout, 32, 16);

/* bp_io_request (element) */
BP_PIN(sizeof(bp_io_request) >= 32);
BP_PIN_FIELD(bp_io_request, memory_kind, 0, 4);
BP_PIN_FIELD(bp_io_request, reserved, 4, 4);
BP_PIN_FIELD(bp_io_request, flags, 8, 8);
BP_PIN_FIELD(bp_io_request, layout, 16, 16);

/* bp_io_contract (element) */
BP_PIN(sizeof(bp_io_contract) >= 40);
BP_PIN_FIELD(bp_io_contract, memory_kind, 0, 4);
BP_PIN_FIELD(bp_io_contract, size_kind, 4, 4);
BP_PIN_FIELD(bp_io_contract, layout, 8, 16);
BP_PIN_FIELD(bp_io_contract, size_bytes, 24, 8);
BP_PIN_FIELD(bp_io_contract, alias_input, 32, 4);
BP_PIN_FIELD(bp_io_contract, reserved, 36, 4);

/* bp_compile_args (grows) */
BP_PIN(sizeof(bp_compile_args) >= 112);
BP_PIN_FIELD(bp_compile_args, struct_size, 0, 8);
BP_PIN_FIELD(bp_compile_args, device, 8, 8);
BP_PIN_FIELD(bp_compile_args, info, 16, 8);
BP_PIN_FIELD(bp_compile_args, graph, 24, 8);
BP_PIN_FIELD(bp_compile_args, inputs, 32, 8);
BP_PIN_FIELD(bp_compile_args, outputs, 40, 8);
BP_PIN_FIELD(bp_compile_args, io_stride, 48, 8);
BP_PIN_FIELD(bp_compile_args, hot_dims, 56, 8);
BP_PIN_FIELD(bp_compile_args, hot_count, 64, 8);
BP_PIN_FIELD(bp_compile_args, options, 72, 16);
BP_PIN_FIELD(bp_compile_args, cancel, 88, 8);
BP_PIN_FIELD(bp_compile_args, pair_id, 96, 8);
BP_PIN_FIELD(bp_compile_args, role, 104, 4);
BP_PIN_FIELD(bp_compile_args, reserved, 108, 4);

/* bp_executable_info (grows) */
BP_PIN(sizeof(bp_executable_info) >= 88);
BP_PIN_FIELD(bp_executable_info, struct_size, 0, 8);
BP_PIN_FIELD(bp_executable_info, flags, 8, 8);
BP_PIN_FIELD(bp_executable_info, inputs, 16, 8);
BP_PIN_FIELD(bp_executable_info, outputs, 24, 8);
BP_PIN_FIELD(bp_executable_info, io_stride, 32, 8);
BP_PIN_FIELD(bp_executable_info, workspace_bytes, 40, 8);
BP_PIN_FIELD(bp_executable_info, workspace_alignment_bytes, 48, 4);
BP_PIN_FIELD(bp_executable_info, out_dim_count, 52, 4);
BP_PIN_FIELD(bp_executable_info, internal_bytes, 56, 8);
BP_PIN_FIELD(bp_executable_info, time_ns, 64, 8);
BP_PIN_FIELD(bp_executable_info, requirement, 72, 16);

/* bp_binding (element) */
BP_PIN(sizeof(bp_binding) >= 56);
BP_PIN_FIELD(bp_binding, range, 0, 32);
BP_PIN_FIELD(bp_binding, scalar, 32, 16);
BP_PIN_FIELD(bp_binding, flags, 48, 8);

/* bp_lending (grows) */
BP_PIN(sizeof(bp_lending) >= 48);
BP_PIN_FIELD(bp_lending, struct_size, 0, 8);
BP_PIN_FIELD(bp_lending, user, 8, 8);
BP_PIN_FIELD(bp_lending, lend_output, 16, 8);
BP_PIN_FIELD(bp_lending, input_done, 24, 8);
BP_PIN_FIELD(bp_lending, lend_workspace, 32, 8);
BP_PIN_FIELD(bp_lending, workspace_done, 40, 8);

/* bp_execute_args (grows) */
BP_PIN(sizeof(bp_execute_args) >= 128);
BP_PIN_FIELD(bp_execute_args, struct_size, 0, 8);
BP_PIN_FIELD(bp_execute_args, inputs, 8, 8);
BP_PIN_FIELD(bp_execute_args, outputs, 16, 8);
BP_PIN_FIELD(bp_execute_args, binding_stride, 24, 8);
BP_PIN_FIELD(bp_execute_args, workspace, 32, 32);
BP_PIN_FIELD(bp_execute_args, dims, 64, 8);
BP_PIN_FIELD(bp_execute_args, out_dims, 72, 8);
BP_PIN_FIELD(bp_execute_args, order, 80, 32);
BP_PIN_FIELD(bp_execute_args, call_id, 112, 8);
BP_PIN_FIELD(bp_execute_args, lending, 120, 8);

/* bp_plugin_api (grows) */
BP_PIN(sizeof(bp_plugin_api) >= 328);
BP_PIN_FIELD(bp_plugin_api, struct_size, 0, 8);
BP_PIN_FIELD(bp_plugin_api, version, 8, 4);
BP_PIN_FIELD(bp_plugin_api, reserved, 12, 4);
BP_PIN_FIELD(bp_plugin_api, flags, 16, 8);
BP_PIN_FIELD(bp_plugin_api, device_count, 24, 8);
BP_PIN_FIELD(bp_plugin_api, device_describe, 32, 8);
BP_PIN_FIELD(bp_plugin_api, device_open, 40, 8);
BP_PIN_FIELD(bp_plugin_api, device_close, 48, 8);
BP_PIN_FIELD(bp_plugin_api, buffer_create, 56, 8);
BP_PIN_FIELD(bp_plugin_api, buffer_release, 64, 8);
BP_PIN_FIELD(bp_plugin_api, copy, 72, 8);
BP_PIN_FIELD(bp_plugin_api, claims, 80, 8);
BP_PIN_FIELD(bp_plugin_api, compile, 88, 8);
BP_PIN_FIELD(bp_plugin_api, executable_describe, 96, 8);
BP_PIN_FIELD(bp_plugin_api, executable_release, 104, 8);
BP_PIN_FIELD(bp_plugin_api, execute, 112, 8);
BP_PIN_FIELD(bp_plugin_api, shutdown, 120, 8);
BP_PIN_FIELD(bp_plugin_api, device_counters, 128, 8);
BP_PIN_FIELD(bp_plugin_api, device_reset, 136, 8);
BP_PIN_FIELD(bp_plugin_api, buffer_import, 144, 8);
BP_PIN_FIELD(bp_plugin_api, buffer_export, 152, 8);
BP_PIN_FIELD(bp_plugin_api, stream_create, 160, 8);
BP_PIN_FIELD(bp_plugin_api, stream_release, 168, 8);
BP_PIN_FIELD(bp_plugin_api, event_create, 176, 8);
BP_PIN_FIELD(bp_plugin_api, event_release, 184, 8);
BP_PIN_FIELD(bp_plugin_api, event_query, 192, 8);
BP_PIN_FIELD(bp_plugin_api, event_wait, 200, 8);
BP_PIN_FIELD(bp_plugin_api, event_notify, 208, 8);
BP_PIN_FIELD(bp_plugin_api, barrier, 216, 8);
BP_PIN_FIELD(bp_plugin_api, stream_import, 224, 8);
BP_PIN_FIELD(bp_plugin_api, stream_export, 232, 8);
BP_PIN_FIELD(bp_plugin_api, event_import, 240, 8);
BP_PIN_FIELD(bp_plugin_api, event_export, 248, 8);
BP_PIN_FIELD(bp_plugin_api, layout_bytes, 256, 8);
BP_PIN_FIELD(bp_plugin_api, layout_convert, 264, 8);
BP_PIN_FIELD(bp_plugin_api, executable_sizes, 272, 8);
BP_PIN_FIELD(bp_plugin_api, executable_save, 280, 8);
BP_PIN_FIELD(bp_plugin_api, blob_check, 288, 8);
BP_PIN_FIELD(bp_plugin_api, executable_load, 296, 8);
BP_PIN_FIELD(bp_plugin_api, profile_begin, 304, 8);
BP_PIN_FIELD(bp_plugin_api, profile_end, 312, 8);
BP_PIN_FIELD(bp_plugin_api, find_experimental, 320, 8);

/* bp_negotiation (frozen) */
BP_PIN(sizeof(bp_negotiation) == 312);
BP_PIN_FIELD(bp_negotiation, magic, 0, 4);
BP_PIN_FIELD(bp_negotiation, host_min, 4, 4);
BP_PIN_FIELD(bp_negotiation, host_max, 8, 4);
BP_PIN_FIELD(bp_negotiation, result, 12, 4);
BP_PIN_FIELD(bp_negotiation, plugin_min, 16, 4);
BP_PIN_FIELD(bp_negotiation, plugin_max, 20, 4);
BP_PIN_FIELD(bp_negotiation, chosen, 24, 4);
BP_PIN_FIELD(bp_negotiation, reserved, 28, 4);
BP_PIN_FIELD(bp_negotiation, host, 32, 8);
BP_PIN_FIELD(bp_negotiation, api, 40, 8);
BP_PIN_FIELD(bp_negotiation, plugin, 48, 8);
BP_PIN_FIELD(bp_negotiation, message, 56, 256);

/* bp_note (frozen) */
BP_PIN(sizeof(bp_note) == 196);
BP_PIN_FIELD(bp_note, name_size, 0, 4);
BP_PIN_FIELD(bp_note, description_size, 4, 4);
BP_PIN_FIELD(bp_note, type, 8, 4);
BP_PIN_FIELD(bp_note, owner, 12, 12);
BP_PIN_FIELD(bp_note, plugin_min, 24, 4);
BP_PIN_FIELD(bp_note, plugin_max, 28, 4);
BP_PIN_FIELD(bp_note, sanitizer, 32, 4);
BP_PIN_FIELD(bp_note, plugin_name, 36, 64);
BP_PIN_FIELD(bp_note, plugin_vendor, 100, 64);
BP_PIN_FIELD(bp_note, plugin_version, 164, 32);

#endif
