/* Layout of plugin ABI 0.3 on 64-bit targets, written by scripts/make_abi_pins.py when that
 * version was current. Compiles as C99, C11 and C++20; compiling it is the check. */
#ifndef BACKPLANE_ABI_0_3_PINS_H_
#define BACKPLANE_ABI_0_3_PINS_H_

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

/* bp_range (frozen) */
BP_PIN(sizeof(bp_range) == 32);
BP_PIN_FIELD(bp_range, buffer, 0, 8);
BP_PIN_FIELD(bp_range, host, 8, 8);
BP_PIN_FIELD(bp_range, offset_bytes, 16, 8);
BP_PIN_FIELD(bp_range, size_bytes, 24, 8);

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
BP_PIN_FIELD(bp_value, reserved, 32, 4);
BP_PIN_FIELD(bp_value, alias_offset, 40, 8);
BP_PIN_FIELD(bp_value, layout, 48, 16);
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
BP_PIN(sizeof(bp_error_args) >= 80);
BP_PIN_FIELD(bp_error_args, struct_size, 0, 8);
BP_PIN_FIELD(bp_error_args, code, 8, 4);
BP_PIN_FIELD(bp_error_args, line, 12, 4);
BP_PIN_FIELD(bp_error_args, message, 16, 16);
BP_PIN_FIELD(bp_error_args, file, 32, 16);
BP_PIN_FIELD(bp_error_args, function, 48, 16);
BP_PIN_FIELD(bp_error_args, node_ids, 64, 8);
BP_PIN_FIELD(bp_error_args, node_count, 72, 8);

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
BP_PIN(sizeof(bp_host_api) >= 192);
BP_PIN_FIELD(bp_host_api, struct_size, 0, 8);
BP_PIN_FIELD(bp_host_api, version, 8, 4);
BP_PIN_FIELD(bp_host_api, reserved, 12, 4);
BP_PIN_FIELD(bp_host_api, host, 16, 8);
BP_PIN_FIELD(bp_host_api, error_create, 24, 8);
BP_PIN_FIELD(bp_host_api, error_retain, 32, 8);
BP_PIN_FIELD(bp_host_api, error_release, 40, 8);
BP_PIN_FIELD(bp_host_api, error_code, 48, 8);
BP_PIN_FIELD(bp_host_api, error_message, 56, 8);
BP_PIN_FIELD(bp_host_api, log, 64, 8);
BP_PIN_FIELD(bp_host_api, thread_count, 72, 8);
BP_PIN_FIELD(bp_host_api, parallel_for, 80, 8);
BP_PIN_FIELD(bp_host_api, clock_ns, 88, 8);
BP_PIN_FIELD(bp_host_api, span_begin, 96, 8);
BP_PIN_FIELD(bp_host_api, span_end, 104, 8);
BP_PIN_FIELD(bp_host_api, profile_add, 112, 8);
BP_PIN_FIELD(bp_host_api, cache_get, 120, 8);
BP_PIN_FIELD(bp_host_api, cache_put, 128, 8);
BP_PIN_FIELD(bp_host_api, bytes_create, 136, 8);
BP_PIN_FIELD(bp_host_api, bytes_view, 144, 8);
BP_PIN_FIELD(bp_host_api, bytes_release, 152, 8);
BP_PIN_FIELD(bp_host_api, is_cancelled, 160, 8);
BP_PIN_FIELD(bp_host_api, claim_add, 168, 8);
BP_PIN_FIELD(bp_host_api, refuse_add, 176, 8);
BP_PIN_FIELD(bp_host_api, bytes_write, 184, 8);

/* bp_device_rate (element) */
BP_PIN(sizeof(bp_device_rate) >= 16);
BP_PIN_FIELD(bp_device_rate, dtype, 0, 4);
BP_PIN_FIELD(bp_device_rate, reserved, 4, 4);
BP_PIN_FIELD(bp_device_rate, flop_per_s, 8, 8);

/* bp_device_info (grows) */
BP_PIN(sizeof(bp_device_info) >= 192);
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
BP_PIN_FIELD(bp_device_info, torch_device, 176, 16);

/* bp_device_counters (grows) */
BP_PIN(sizeof(bp_device_counters) >= 56);
BP_PIN_FIELD(bp_device_counters, struct_size, 0, 8);
BP_PIN_FIELD(bp_device_counters, health, 8, 4);
BP_PIN_FIELD(bp_device_counters, reserved, 12, 4);
BP_PIN_FIELD(bp_device_counters, live_bytes, 16, 8);
BP_PIN_FIELD(bp_device_counters, peak_bytes, 24, 8);
BP_PIN_FIELD(bp_device_counters, internal_bytes, 32, 8);
BP_PIN_FIELD(bp_device_counters, hidden_copy_bytes, 40, 8);
BP_PIN_FIELD(bp_device_counters, hidden_copy_count, 48, 8);

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
BP_PIN(sizeof(bp_io_request) >= 16);
BP_PIN_FIELD(bp_io_request, layout, 0, 16);

/* bp_io_contract (element) */
BP_PIN(sizeof(bp_io_contract) >= 16);
BP_PIN_FIELD(bp_io_contract, layout, 0, 16);

/* bp_compile_args (grows) */
BP_PIN(sizeof(bp_compile_args) >= 72);
BP_PIN_FIELD(bp_compile_args, struct_size, 0, 8);
BP_PIN_FIELD(bp_compile_args, device, 8, 8);
BP_PIN_FIELD(bp_compile_args, info, 16, 8);
BP_PIN_FIELD(bp_compile_args, graph, 24, 8);
BP_PIN_FIELD(bp_compile_args, inputs, 32, 8);
BP_PIN_FIELD(bp_compile_args, outputs, 40, 8);
BP_PIN_FIELD(bp_compile_args, io_stride, 48, 8);
BP_PIN_FIELD(bp_compile_args, cancel, 56, 8);
BP_PIN_FIELD(bp_compile_args, role, 64, 4);
BP_PIN_FIELD(bp_compile_args, reserved, 68, 4);

/* bp_executable_info (grows) */
BP_PIN(sizeof(bp_executable_info) >= 80);
BP_PIN_FIELD(bp_executable_info, struct_size, 0, 8);
BP_PIN_FIELD(bp_executable_info, flags, 8, 8);
BP_PIN_FIELD(bp_executable_info, inputs, 16, 8);
BP_PIN_FIELD(bp_executable_info, outputs, 24, 8);
BP_PIN_FIELD(bp_executable_info, io_stride, 32, 8);
BP_PIN_FIELD(bp_executable_info, workspace_bytes, 40, 8);
BP_PIN_FIELD(bp_executable_info, internal_bytes, 48, 8);
BP_PIN_FIELD(bp_executable_info, time_ns, 56, 8);
BP_PIN_FIELD(bp_executable_info, requirement, 64, 16);

/* bp_binding (element) */
BP_PIN(sizeof(bp_binding) >= 48);
BP_PIN_FIELD(bp_binding, range, 0, 32);
BP_PIN_FIELD(bp_binding, scalar, 32, 16);

/* bp_lending (grows) */
BP_PIN(sizeof(bp_lending) >= 48);
BP_PIN_FIELD(bp_lending, struct_size, 0, 8);
BP_PIN_FIELD(bp_lending, user, 8, 8);
BP_PIN_FIELD(bp_lending, lend_output, 16, 8);
BP_PIN_FIELD(bp_lending, input_done, 24, 8);
BP_PIN_FIELD(bp_lending, lend_workspace, 32, 8);
BP_PIN_FIELD(bp_lending, workspace_done, 40, 8);

/* bp_execute_args (grows) */
BP_PIN(sizeof(bp_execute_args) >= 120);
BP_PIN_FIELD(bp_execute_args, struct_size, 0, 8);
BP_PIN_FIELD(bp_execute_args, inputs, 8, 8);
BP_PIN_FIELD(bp_execute_args, outputs, 16, 8);
BP_PIN_FIELD(bp_execute_args, binding_stride, 24, 8);
BP_PIN_FIELD(bp_execute_args, workspace, 32, 32);
BP_PIN_FIELD(bp_execute_args, dims, 64, 8);
BP_PIN_FIELD(bp_execute_args, order, 72, 32);
BP_PIN_FIELD(bp_execute_args, call_id, 104, 8);
BP_PIN_FIELD(bp_execute_args, lending, 112, 8);

/* bp_plugin_api (grows) */
BP_PIN(sizeof(bp_plugin_api) >= 264);
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
BP_PIN_FIELD(bp_plugin_api, stream_create, 136, 8);
BP_PIN_FIELD(bp_plugin_api, stream_release, 144, 8);
BP_PIN_FIELD(bp_plugin_api, event_create, 152, 8);
BP_PIN_FIELD(bp_plugin_api, event_release, 160, 8);
BP_PIN_FIELD(bp_plugin_api, event_query, 168, 8);
BP_PIN_FIELD(bp_plugin_api, event_wait, 176, 8);
BP_PIN_FIELD(bp_plugin_api, layout_bytes, 184, 8);
BP_PIN_FIELD(bp_plugin_api, layout_convert, 192, 8);
BP_PIN_FIELD(bp_plugin_api, executable_workspace, 200, 8);
BP_PIN_FIELD(bp_plugin_api, executable_save, 208, 8);
BP_PIN_FIELD(bp_plugin_api, blob_check, 216, 8);
BP_PIN_FIELD(bp_plugin_api, executable_load, 224, 8);
BP_PIN_FIELD(bp_plugin_api, profile_begin, 232, 8);
BP_PIN_FIELD(bp_plugin_api, profile_end, 240, 8);
BP_PIN_FIELD(bp_plugin_api, memory_import, 248, 8);
BP_PIN_FIELD(bp_plugin_api, stream_import, 256, 8);

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
