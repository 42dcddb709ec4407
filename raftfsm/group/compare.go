package group

import (
	"context"

	"github.com/quorate/quorate/raftfsm/integrity"
)

// Compare compares the state of all servers of the group and returns the result. It repairs nothing; the regular
// comparisons in the background do that. It returns fault.NotLeader if this server does not lead.
func (g *Group) Compare(ctx context.Context) (integrity.Comparison, error) {
	if !g.Leading() {
		return integrity.Comparison{}, errNotLeader("group.Compare")
	}
	return g.integrity.Compare(ctx)
}
