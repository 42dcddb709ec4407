package membership

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// valuesOf groups members by a value; members without one (empty) have no say. The values
// with most members come first.
func valuesOf(members []Member, get func(*Member) string) []Value {
	nodes := map[string][]string{}
	for i := range members {
		if v := get(&members[i]); v != "" {
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

// most nodes that are named one by one.
const named = 5

// spell writes values and who has them: "3 on n1, n2; 5 on n3".
func spell(values []Value) string {
	var parts []string
	for _, v := range values {
		who := v.Nodes
		more := ""
		if len(who) > named {
			more = " and " + strconv.Itoa(len(who)-named) + " more"
			who = who[:named]
		}
		parts = append(parts, v.Value+" on "+strings.Join(who, ", ")+more)
	}
	return strings.Join(parts, "; ")
}
