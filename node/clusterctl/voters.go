package clusterctl

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/membership"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/placement"
)

// votersNote is the name of the note that holds the number of voters of the cluster.
const votersNote = "voters"

const (
	opVoters    = "node.SetVoters"
	votersPause = 500 * time.Millisecond // between looks at the note
	votersWait  = 2 * time.Second        // for one read or write of the note
)

// votersRecord is the content of the note, as JSON.
type votersRecord struct {
	Voters int `json:"voters"`
}

// voterCount has the number of voters that each group should have. Group 0 stores the number in a note, which is a
// small named record. If there is no note, the leader of group 0 creates it from its own setting --voters, as soon as
// the cluster has more than one server. A voterCount is safe for concurrent use.
type voterCount struct {
	parts

	mu       sync.Mutex // guards number and revision
	number   int        // from the note; unread, unrecorded, or at least 1
	revision uint64     // of that note; 0 = there is none
}

// Special values of voterCount.number.
const (
	unread     = -1 // the note was not read since the start
	unrecorded = 0  // there is no note
)

func newVoterCount(p parts) *voterCount {
	return &voterCount{parts: p, number: unread}
}

// current returns the number from the note. It returns unread if the note was not read yet, and unrecorded if there is
// no note.
func (v *voterCount) current() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.number
}

// run follows the note until ctx ends.
func (v *voterCount) run(ctx context.Context) {
	tick := time.NewTicker(votersPause)
	defer tick.Stop()
	for {
		v.look(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// look reads the note with the number of voters. If there is no note and this server should write it, look writes it.
//
// The first read is linearizable, because the local replica may be old after a start. With an old number, the server
// would change the voters needlessly.
func (v *voterCount) look(ctx context.Context) {
	if len(v.host.Groups()) == 0 || v.host.Leader(0) == "" {
		return
	}
	if v.current() != unread {
		if n, err := v.host.LocalNote(votersNote); err == nil {
			v.take(n)
		}
	} else {
		ctx, cancel := context.WithTimeout(ctx, votersWait)
		n, err := v.host.Note(ctx, votersNote)
		cancel()
		if err != nil {
			return // the next look tries again
		}
		v.take(n)
	}
	if v.current() == unrecorded && v.shouldRecord() {
		ctx, cancel := context.WithTimeout(ctx, votersWait)
		defer cancel()
		if err := v.record(ctx, v.opts.Voters, 0); err != nil {
			v.log.Debug("the number of voters is not recorded yet", "error", err) // tried again
		}
	}
}

// take copies the number from the note n to v, unless v already has the number of a newer note. An older note can come
// from the local replica, which may lag behind an earlier linearizable read or write of this node.
func (v *voterCount) take(n raftfsm.Note) {
	number := v.decode(n)
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case number != unrecorded && n.Revision >= v.revision:
		v.number, v.revision = number, n.Revision
	case v.number == unread:
		v.number = unrecorded
	}
}

func (v *voterCount) decode(n raftfsm.Note) int {
	var r votersRecord
	if n.Value == nil {
		return unrecorded
	}
	if err := json.Unmarshal(n.Value, &r); err != nil || r.Voters < 1 {
		v.log.Error("the recorded number of voters cannot be read", "value", string(n.Value),
			"hint", "set it again with: quorate voters")
		return unrecorded
	}
	return r.Voters
}

// shouldRecord reports whether this server should write the note. It returns true if this server leads group 0, and the
// cluster has more than one server.
func (v *voterCount) shouldRecord() bool {
	g := v.host.Groups()[0]
	servers, _ := g.Servers()
	return g.Leading() && len(servers) > 1
}

// record writes the note. The parameter revision is the present revision of the note, or 0 if there is no note. If the
// note has another revision, the error is fault.Conflict.
func (v *voterCount) record(ctx context.Context, number int, revision uint64) error {
	text, err := json.Marshal(votersRecord{Voters: number})
	if err != nil {
		return err
	}
	written, err := v.host.SetNote(ctx, votersNote, text, revision)
	if err != nil {
		return err
	}
	v.take(raftfsm.Note{Value: text, Revision: written})
	return nil
}

// wanted returns the number of voters that a group should have now:
//
//   - the number in the note, if there is a note
//   - flag, the setting --voters of this server, if there is no note
//   - the number of voters in servers, if this node has not read the note yet. An even number above 2 is increased by
//     1, because a change from one odd number to another is in progress.
func (v *voterCount) wanted(servers []raft.Server, flag int) int {
	switch n := v.current(); {
	case n > 0:
		return n
	case n == unrecorded:
		return flag
	}
	have := 0
	for _, s := range servers {
		if s.Suffrage == raft.Voter {
			have++
		}
	}
	if have > 2 && have%2 == 0 {
		have++ // a change from one odd number to another is under way
	}
	return max(have, 1)
}

// Voters returns the number of voters that each group should have. It also returns the voters and non-voters that each
// group has now, as far as this node knows.
func (ctl *Controller) Voters(ctx context.Context) (schema.VotersStatus, error) {
	out := schema.VotersStatus{Groups: []schema.VotersGroup{}}
	if err := ctl.host.Removed(); err != nil {
		return out, err
	}
	n, err := ctl.host.Note(ctx, votersNote)
	if err != nil {
		return out, err
	}
	if out.Voters = ctl.voters.decode(n); out.Voters == unrecorded {
		out.Voters = ctl.opts.Voters
		if leader := leaderVoters(ctl.net.Gossip().Roster(), ctl.host.Leader(0)); leader != 0 {
			out.Voters = leader
		}
	}
	roster := ctl.net.Gossip().Roster()
	for i, g := range ctl.host.Groups() {
		one := schema.VotersGroup{Group: uint64(i), Voters: []string{}, NonVoters: []string{}}
		servers, _ := g.Servers()
		for _, s := range servers {
			node := placement.NodeOf(string(s.ID))
			state := roster.StateOf(node, string(s.ID))
			if state != membership.Alive.String() && string(s.ID) != ctl.host.Identity().Server {
				if one.States == nil {
					one.States = map[string]string{}
				}
				one.States[node] = state
			}
			if s.Suffrage == raft.Voter {
				one.Voters = append(one.Voters, node)
			} else {
				one.NonVoters = append(one.NonVoters, node)
			}
		}
		slices.Sort(one.Voters)
		slices.Sort(one.NonVoters)
		out.Groups = append(out.Groups, one)
	}
	return out, nil
}

// SetVoters sets the number of voters that each group should have. It returns when the number is committed. After that,
// the groups change their voters one at a time. SetVoters returns fault.Invalid if the number is not permitted.
func (ctl *Controller) SetVoters(ctx context.Context, number int) (schema.VotersStatus, error) {
	if why, hint := placement.CheckVoters(number); why != "" {
		return schema.VotersStatus{}, &fault.Error{Code: fault.Invalid, Op: opVoters, Msg: why, Hint: hint}
	}
	if err := ctl.host.Removed(); err != nil {
		return schema.VotersStatus{}, err
	}
	before := 0
	for {
		n, err := ctl.host.Note(ctx, votersNote)
		if err != nil {
			return schema.VotersStatus{}, err
		}
		if before = ctl.voters.decode(n); before == number {
			break
		}
		if err = ctl.voters.record(ctx, number, n.Revision); err == nil {
			ctl.log.Info("the number of voters was changed", "voters", number, "before", before)
			break
		}
		if !fault.Is(err, fault.Conflict) {
			return schema.VotersStatus{}, err
		}
	}
	ctl.reconciler.hurry()
	out, err := ctl.Voters(ctx)
	if err != nil { // the number is committed; only the present voters are not known
		out = schema.VotersStatus{Voters: number, Groups: []schema.VotersGroup{}}
	}
	out.Before = before
	return out, nil
}
