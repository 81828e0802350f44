/* Uses what the headers define beyond declarations, so that macros and inline helpers expand in C99
 * and in C11 without a warning. */
#include <backplane/plugin.h>

BP_NOTE(BP_VERSION(0, 2), BP_ABI_VERSION, "header_use", "Backplane tests", "0.1",
        BP_SANITIZER_NONE);

uint64_t backplane_header_use(const bp_graph* graph);
uint64_t backplane_header_use(const bp_graph* graph) {
  uint64_t seen = BP_VALUE_CONSTANT | BP_EFFECT_RANDOM | BP_CLAIM_DIVISIBLE;
  if (!BP_HAS(graph->struct_size, bp_graph, output_count)) return 0;
  if (graph->node_count != 0) seen += bp_graph_node(graph, 0)->id;
  if (graph->value_count != 0) seen += bp_graph_value(graph, 0)->id;
  if (graph->attribute_count != 0) seen += bp_graph_attribute(graph, 0)->kind;
  if (graph->op_count != 0) seen += bp_graph_op(graph, 0)->version;
  if (graph->dim_class_count != 0) seen += (uint64_t)bp_graph_dim_class(graph, 0)->divisor;
  return seen + BP_VERSION_MAJOR(BP_ABI_VERSION) + bp_plugin_note.plugin_min;
}
