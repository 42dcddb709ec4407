package transport

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// A whole data directory can be replaced by an older copy, for instance from a disk image. The copy is consistent, so
// the server cannot detect the replacement alone. The other servers of the group can. Each server records what the
// other servers have shown to have on their disks (raftlog.Seen), and stores these records in its floor. A starting
// server queries the other servers before it takes part. If it has less than it has shown before, it must not vote or
// acknowledge entries. Its process then ends.
//
// Rules for each incarnation of a server:
//
//  1. It shows another server nothing, neither in Raft's messages nor in a report, until that server has answered its
//     query. So every answer is about earlier incarnations, even if earlier answers to the same query were lost. The
//     answer is compared with what this server had when it opened the group.
//  2. A voter takes part only after every other server of its configuration has answered or cannot be reached. The
//     voters that have answered must form a majority together with it.
//
// These rules never refuse an intact server. What a server records about another server was durable there before, and
// an intact server never has less later. A record contains a term, the term of a vote, the commit index, and the
// newest entry acknowledged to the leader of a term.

// Witnesses queries other servers about what they have seen of this server.
type Witnesses interface {
	// Recall returns what server has recorded about self, or an error if there is no answer. If now is not empty,
	// Recall also reports it to server, as the data that self has.
	Recall(ctx context.Context, server, self raft.ServerID, now raftlog.Seen) (raftlog.Seen, error)
}

// Claim is what a server holds when it opens a group.
type Claim struct {
	Term, Vote uint64
	LogTerm    uint64
	Last       uint64 // last index of the log, or of the snapshot if the log is empty
}

// lacks compares what this server has with what another server has seen of it. It returns a description of what this
// server has lost, or "" if nothing was lost.
func (c Claim) lacks(s raftlog.Seen) string {
	switch {
	case c.Term < s.Term:
		return fmt.Sprintf("it is in term %d, and was in term %d", c.Term, s.Term)
	case c.Vote < s.Vote:
		return fmt.Sprintf("its last vote is of term %d, and it has voted in term %d", c.Vote, s.Vote)
	case c.Last < s.Committed:
		return fmt.Sprintf("its log ends at entry %d, and it had the committed entry %d", c.Last, s.Committed)
	case c.Term == s.Matched.Term && c.Last < s.Matched.Index:
		return fmt.Sprintf("its log ends at entry %d, and it has acknowledged entry %d of term %d", c.Last,
			s.Matched.Index, s.Matched.Term)
	}
	return ""
}

// SeenTable holds what this server has seen of other servers. It is safe for concurrent use.
type SeenTable struct {
	mu sync.Mutex
	by map[string]raftlog.Seen
}

// Load fills the table with the records of the floor file. stored is the cluster and the epoch that the file names, and
// current is the present cluster and epoch. If they differ, Load ignores the records: the cluster was rescued after the
// file was written, and the other servers have started without data since.
func (t *SeenTable) Load(kept map[string]raftlog.Seen, stored, current raftlog.Owner) {
	if stored.Cluster != "" && stored != current {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.by = maps.Clone(kept)
}

// Note merges s into the record of the server with the given id. It returns the record as it was before.
func (t *SeenTable) Note(id raft.ServerID, s raftlog.Seen) (before raftlog.Seen) {
	if id == "" {
		return before
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	before = t.by[string(id)]
	if all := before.Merge(s); all != before {
		if t.by == nil {
			t.by = map[string]raftlog.Seen{}
		}
		t.by[string(id)] = all
	}
	return before
}

// All returns a copy of all records, by server id. Server ids are never reused.
func (t *SeenTable) All() map[string]raftlog.Seen {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.by)
}

// Keep removes all records except those of members.
func (t *SeenTable) Keep(members []raft.Server) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.by, func(id string, _ raftlog.Seen) bool {
		for _, m := range members {
			if string(m.ID) == id {
				return false
			}
		}
		return true
	})
}

// Witness detects whether this server had lost data when it started. It queries every other server of the group for
// that server's record of this server, and repeats each query until an answer arrives. It also regularly reports the
// term, the vote and the commit index of this server to the other servers. It uses one goroutine, and one more for each
// query in flight.
type Witness struct {
	WitnessConfig
	*SeenTable

	kick    chan struct{} // capacity 1
	cleared atomic.Bool   // this server takes part in the group (rule 2 above)
	failed  atomic.Bool   // this server has lost data

	mu       sync.Mutex
	answered map[raft.ServerID]bool
	// wanted has the servers that must still be queried because they have exchanged messages with this server, or
	// because Meet was called for them
	wanted map[raft.ServerID]bool
}

// Members gives a Witness access to the configuration of the group and to the positions of this server. The Witness
// uses Members only while it runs.
type Members interface {
	// Servers returns the servers of the newest configuration.
	Servers() []raft.Server
	// Shown returns what this server has, for other servers to record.
	Shown() raftlog.Seen
}

// WitnessConfig configures a Witness.
type WitnessConfig struct {
	Ask     Witnesses // nil = no server is queried, and every message passes
	Self    raft.ServerID
	Opened  Claim         // what this server had when the group was opened
	Timeout time.Duration // time limit of a query
	Every   time.Duration // interval at which this server reports what it has, if that has changed
	Dir     string
	Members Members
	Process Process
}

// Process is the program that runs the Witness. The Witness calls Fatal at most once, if this server has lost data that
// another server has seen.
type Process interface{ Fatal(err error) }

// NewWitness creates a Witness with the table seen, which holds what this server has seen of other servers.
func NewWitness(c WitnessConfig, seen *SeenTable) *Witness {
	return &Witness{
		WitnessConfig: c, SeenTable: seen, kick: make(chan struct{}, 1),
		answered: map[raft.ServerID]bool{}, wanted: map[raft.ServerID]bool{},
	}
}

// Bounds of the pause before servers that have not answered are queried again. The pause doubles from witnessSoon to
// witnessSlow. When a server seems to be reachable, for example because it sends a Raft message, the next query is sent
// at once, and the pause begins at witnessSoon again.
const (
	witnessSoon = 10 * time.Millisecond
	witnessSlow = 500 * time.Millisecond
)

// Passes returns nil if Raft may exchange messages with the given server, and otherwise fault.Unavailable with the
// reason. If the given server has not answered yet, the Witness queries it.
func (w *Witness) Passes(id raft.ServerID) error {
	if w.Ask == nil || id == "" || id == w.Self {
		return nil
	}
	if w.failed.Load() {
		return fault.New(fault.Unavailable, "group.witness",
			"this server has lost data that it had acknowledged, and takes no part")
	}
	w.mu.Lock()
	known, fresh := w.answered[id], !w.answered[id] && !w.wanted[id]
	if fresh {
		w.wanted[id] = true
	}
	w.mu.Unlock()
	if known && w.cleared.Load() {
		return nil
	}
	if fresh { // later messages start no further query, because Run repeats the first one with pauses
		w.hurry()
	}
	return fault.New(fault.Unavailable, "group.witness",
		"this server has just started and first queries the other servers")
}

// PassesFrom works like Passes, for a message that was received from the given server. If the message must not pass,
// PassesFrom also triggers a query to that server at once, because its message shows that it can be reached.
func (w *Witness) PassesFrom(id raft.ServerID) error {
	err := w.Passes(id)
	if err != nil {
		w.hurry()
	}
	return err
}

func (w *Witness) hurry() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// Meet makes the Witness query the given server, even if the local configuration does not contain that server. Call it
// only for a server that can be reached, because Run repeats the query until that server answers.
func (w *Witness) Meet(id raft.ServerID) {
	if w.Ask == nil || id == "" || id == w.Self {
		return
	}
	w.mu.Lock()
	known := w.answered[id]
	if !known {
		w.wanted[id] = true
	}
	w.mu.Unlock()
	if !known {
		w.hurry()
	}
}

// Run sends queries and reports until the channel stop is closed. It returns at once if Ask is nil.
func (w *Witness) Run(ctx context.Context, stop <-chan struct{}) {
	if w.Ask == nil {
		return
	}
	var shown raftlog.Seen
	tell := time.NewTicker(w.Every)
	defer tell.Stop()
	wait := witnessSoon
	for {
		w.round(ctx, w.unanswered())
		w.clear()
		pause := time.NewTimer(wait)
		wait = min(2*wait, witnessSlow)
		if len(w.unanswered()) == 0 && w.cleared.Load() {
			pause.Stop()
			wait = witnessSoon
		}
		select {
		case <-w.kick:
			wait = witnessSoon
		case <-pause.C:
		case <-tell.C:
			if now := w.Members.Shown(); now != shown && w.cleared.Load() {
				shown = now
				w.round(ctx, w.others())
			}
		case <-stop:
			pause.Stop()
			return
		}
		pause.Stop()
	}
}

// others returns all other servers of the configuration.
func (w *Witness) others() []raft.ServerID {
	var out []raft.ServerID
	for _, s := range w.Members.Servers() {
		if s.ID != w.Self {
			out = append(out, s.ID)
		}
	}
	return out
}

// unanswered returns the servers that have not answered yet and must be queried. These are the members of the
// configuration, the servers that have exchanged messages with this server, and the servers passed to Meet.
func (w *Witness) unanswered() []raft.ServerID {
	ids := w.others()
	w.mu.Lock()
	defer w.mu.Unlock()
	set := map[raft.ServerID]bool{}
	for _, id := range ids {
		set[id] = true
	}
	for id := range w.wanted {
		set[id] = true
	}
	var out []raft.ServerID
	for id := range set {
		if !w.answered[id] {
			out = append(out, id)
		}
	}
	return out
}

// round calls report for the given servers concurrently. It returns when each call has succeeded or failed.
func (w *Witness) round(ctx context.Context, ids []raft.ServerID) {
	ctx, cancel := context.WithTimeout(ctx, w.Timeout)
	defer cancel()
	var wg sync.WaitGroup
	for _, id := range ids {
		wg.Go(func() { w.report(ctx, id) })
	}
	wg.Wait()
}

// report sends the term, the vote and the commit index of this server to another server. Before the first report, it
// queries the other server for that server's record of this server. If the query fails, report sends nothing.
//
// The query and the report are separate calls. If they were one call and its answer were lost, a repeated call would
// return the reported values instead of the earlier record.
func (w *Witness) report(ctx context.Context, id raft.ServerID) {
	if !w.hasAnswered(id) {
		seen, err := w.Ask.Recall(ctx, id, w.Self, raftlog.Seen{})
		if err != nil {
			return
		}
		w.heard(id, seen)
	}
	if w.hasAnswered(id) {
		_, _ = w.Ask.Recall(ctx, id, w.Self, w.Members.Shown()) // a lost report is repeated when it has changed
	}
}

func (w *Witness) hasAnswered(id raft.ServerID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.answered[id]
}

// heard processes the first answer of a server. If this server has lost data, heard calls Process.Fatal, once.
func (w *Witness) heard(id raft.ServerID, seen raftlog.Seen) {
	if why := w.Opened.lacks(seen); why != "" {
		if !w.failed.Swap(true) {
			w.Process.Fatal(&fault.Error{Code: fault.Corrupt, Op: "group.witness", Key: w.Dir,
				Msg:  fmt.Sprintf("%s is an older copy: %s, according to server %s", w.Dir, why, id),
				Hint: raftlog.RejoinHint})
		}
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answered[id] = true
	delete(w.wanted, id)
}

// clear lets this server take part in the group when enough servers have answered. A non-voter needs no answer. A
// voter needs answers of enough other voters to form a majority with them. clear does nothing if an answer has shown
// that this server lost data. Call it only when all servers that must be queried have been queried.
func (w *Witness) clear() {
	if w.cleared.Load() || w.failed.Load() {
		return
	}
	voter, voters, answered := false, 0, 0
	w.mu.Lock()
	for _, s := range w.Members.Servers() {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		switch {
		case s.ID == w.Self:
			voter = true
			answered++
		case w.answered[s.ID]:
			answered++
		}
	}
	w.mu.Unlock()
	if !voter || answered > voters/2 {
		w.cleared.Store(true)
	}
}
