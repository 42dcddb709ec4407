package membership

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// valuesOf calls valueIn for each member and groups the members by result. It returns the distinct results, each with
// the ids of its nodes. The most frequent result comes first. Empty results are left out.
func valuesOf(members []Member, valueIn func(*Member) string) []Value {
	nodes := map[string][]string{}
	for i := range members {
		if v := valueIn(&members[i]); v != "" {
			nodes[v] = append(nodes[v], members[i].NodeID)
		}
	}
	var out []Value
	for v, who := range nodes {
		slices.Sort(who)
		out = append(out, Value{Value: v, Nodes: who})
	}
	slices.SortFunc(out, func(a, b Value) int {
		return cmp.Or(cmp.Compare(len(b.Nodes), len(a.Nodes)), cmp.Compare(a.Value, b.Value))
	})
	return out
}

// maxNamed is how many nodes are listed by name.
const maxNamed = 5

// formatValues formats values and their nodes: "3 on n1, n2; 5 on n3".
func formatValues(values []Value) string {
	var parts []string
	for _, v := range values {
		who := v.Nodes
		more := ""
		if len(who) > maxNamed {
			more = " and " + strconv.Itoa(len(who)-maxNamed) + " more"
			who = who[:maxNamed]
		}
		parts = append(parts, v.Value+" on "+strings.Join(who, ", ")+more)
	}
	return strings.Join(parts, "; ")
}
