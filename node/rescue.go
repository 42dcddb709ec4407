package node

import (
	"log/slog"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/raftfsm"
)

// Rescue makes a stopped server the only voter of its groups. The server is given by its data directory. Before
// anything changes, Rescue calls the function agree with a report about the server. If agree returns false or an error,
// nothing changes. For the steps, see raftfsm.Rescue.
func Rescue(dir string, log *slog.Logger, agree func(schema.RescueReport) (bool, error)) (schema.RescueReport, error) {
	agreed := false
	s, err := raftfsm.Rescue(raftfsm.RescueOptions{Dir: dir, Logger: log,
		Agree: func(s raftfsm.Survey) (bool, error) {
			yes, err := agree(rescueReport(dir, &s))
			agreed = yes && err == nil
			return yes, err
		}})
	r := rescueReport(dir, &s)
	r.Rescued = agreed && err == nil
	return r, err
}

func rescueReport(dir string, s *raftfsm.Survey) schema.RescueReport {
	id := s.Identity
	r := schema.RescueReport{
		Node: id.Node, ServerID: id.Server, DataDir: dir, ClusterID: id.Cluster, Epoch: id.Epoch, Alone: s.Alone(),
		BrokenOff: id.Rescuing != 0, LeftBehind: id.LeftBehind(),
		Groups: []schema.RescueGroup{},
	}
	seen := map[string]bool{id.Server: true}
	for _, g := range s.Groups {
		one := schema.RescueGroup{
			ID: uint64(g.ID), LastIndex: g.LastIndex, LastTerm: g.LastTerm, Term: g.Term, AppliedIndex: g.Applied,
			SnapshotIndex: g.SnapshotIndex,
			Keys:          g.Keys, Voters: []string{}, NonVoters: []string{},
		}
		for _, v := range g.Servers {
			if v.Suffrage != raft.Voter {
				one.NonVoters = append(one.NonVoters, string(v.ID))
				continue
			}
			one.Voters = append(one.Voters, string(v.ID))
			if !seen[string(v.ID)] {
				seen[string(v.ID)] = true
				r.Others = append(r.Others, string(v.ID))
			}
		}
		r.Groups = append(r.Groups, one)
	}
	return r
}
