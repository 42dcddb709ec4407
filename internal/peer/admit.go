package peer

import (
	"fmt"

	"github.com/quorate/quorate/internal/fault"
)

// admit decides whether a connection is permitted. self is the identity of the server that was called, and h is the
// hello of the caller. admit returns nil, or the reason for a refusal. The rules:
//
//   - The hello must be addressed to the server that was called, and come from another server.
//   - Both sides must have the same cluster and the same epoch. AnyEpoch matches every epoch, except on Raft
//     connections.
//   - A connection for joining is also accepted if the epochs differ, or if a side has no cluster yet. Such a
//     connection can only call methods with Join set.
func admit(self Identity, h hello) *Refusal {
	for _, rule := range []func(Identity, hello) *Refusal{admitCluster, admitServer, admitEpoch} {
		if r := rule(self, h); r != nil {
			return r
		}
	}
	return nil
}

func admitCluster(self Identity, h hello) *Refusal {
	switch {
	case h.Cluster == self.Cluster && self.Cluster != "":
		return nil
	case h.Cluster != "" && self.Cluster != "":
		return refuse(ReasonForeignCluster, fault.Denied,
			fmt.Sprintf("server %q belongs to cluster %q, but %q, which called it, to cluster %q", self.Server,
				self.Cluster, h.From, h.Cluster),
			"check --join of the caller; a data directory belongs to one cluster permanently")
	case h.kind == kindJoin:
		return nil
	case self.Cluster == "":
		return refuse(ReasonUnformed, fault.Unavailable,
			fmt.Sprintf("server %q belongs to no cluster yet", self.Server), "it can be called once it has joined")
	}
	return refuse(ReasonUnformed, fault.Unavailable,
		fmt.Sprintf("server %q, which called %q, belongs to no cluster yet", h.From, self.Server),
		"it can call once it has joined")
}

func admitServer(self Identity, h hello) *Refusal {
	switch {
	case h.To != self.Server:
		return refuse(ReasonWrongServer, fault.Unavailable,
			fmt.Sprintf("server %q answers at this address, not %q", self.Server, h.To),
			"the address has a new owner; gossip will report the server's new address")
	case h.From == self.Server:
		return refuse(ReasonOwnID, fault.Invalid,
			fmt.Sprintf("the caller claims to be %q, which is this server", h.From),
			"either a server called itself or its data directory was copied: a copy must not run")
	}
	return nil
}

func admitEpoch(self Identity, h hello) *Refusal {
	switch {
	case h.kind == kindJoin || h.Epoch == self.Epoch:
		return nil
	case !h.kind.raft() && (h.Epoch == AnyEpoch || self.Epoch == AnyEpoch):
		return nil
	case h.Epoch < self.Epoch:
		return refuse(ReasonOlderEpoch, fault.Denied,
			fmt.Sprintf("server %q is at cluster epoch %d, the cluster has been rescued since and is at epoch %d",
				h.From, h.Epoch, self.Epoch),
			fmt.Sprintf("%q was left behind by the rescue: move its data directory away and start it again, it "+
				"joins as a new server", h.From))
	}
	return refuse(ReasonNewerEpoch, fault.Denied,
		fmt.Sprintf("server %q is at cluster epoch %d, but %q, which called it, is at epoch %d after a rescue",
			self.Server, self.Epoch, h.From, h.Epoch),
		fmt.Sprintf("%q was left behind by the rescue: move its data directory away and start it again, it joins "+
			"as a new server", self.Server))
}
