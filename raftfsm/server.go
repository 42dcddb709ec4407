package raftfsm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/raft"
	"golang.org/x/sync/errgroup"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/actors"
	"github.com/quorate/quorate/raftfsm/datadir"
	"github.com/quorate/quorate/raftfsm/due"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/locks"
	"github.com/quorate/quorate/raftfsm/peercalls"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/session"
	"github.com/quorate/quorate/raftfsm/topics"
	"github.com/quorate/quorate/raftfsm/workflows"
)

// server implements the interface replica for a node with data, which has a replica of every group. If a call needs the
// leader of a group and another server leads the group, server forwards the call to that server.
type server struct {
	opts    Options
	node    *membership
	metrics *Metrics
	retry   retries
	remote  *peercalls.LeaderClient // client for other servers
	// elsewhere reads at other servers while a replica of this server is not trusted
	elsewhere readClient
	cache     *pebble.Cache // shared by all groups; nil if none is open
	// compacting has capacity 1; see group.Options
	compacting chan struct{}
	space      *datadir.Space // nil if no group is open
	room       []groupRoom    // by group
	opened     atomic.Bool    // every group is open
	groups     []*group.Group
	keepers    []*locks.Keeper     // of the locks of each group
	actors     []*actors.Keeper    // of the actors of each group
	due        []*due.Keeper       // of the due work of each group
	topics     []*topics.Keeper    // of the topics of each group
	workflows  []*workflows.Keeper // of the workflows of each group
	fresh      []freshness         // by group
	scans      scans               // open scans of this server's data that nodes without data read
	stop       chan struct{}
	wg         sync.WaitGroup
}

// openServer sets h.replica to a server, and opens the groups of this node. It opens no groups if the node was removed
// from its cluster.
func openServer(ctx context.Context, h *Host) error {
	id, err := datadir.Identify(ctx, h.opts.directory())
	if err != nil {
		return err
	}
	h.node = newMembership(h.opts.Dir, id, false, h.stop)
	s := &server{opts: h.opts, node: h.node, metrics: h.metrics, retry: retries{h.metrics, h.stop}, stop: h.stop}
	s.remote = peercalls.NewLeaderClient(h.opts.Peers, h.metrics, s)
	s.elsewhere = readClient{h.opts.Peers, h.metrics, s, func(string, error) {}}
	h.replica = s
	if id.Removed {
		return nil
	}
	if err := s.open(ctx); err != nil {
		return err
	}
	h.groups = s.groups
	return nil
}

func (s *server) open(ctx context.Context) error {
	s.cache, s.compacting = pebble.NewCache(s.opts.CacheBytes), make(chan struct{}, 1)
	s.space = datadir.NewSpace(s.opts.Dir, s.opts.MinFree, s.opts.FreeBytes, s.opts.Logger)
	s.space.Measure()
	if err := s.space.EnoughToStart(); err != nil {
		return err
	}
	if err := s.openGroups(ctx); err != nil {
		return err
	}
	if err := s.noteGroupsMade(); err != nil {
		return err
	}
	s.room = make([]groupRoom, len(s.groups))
	s.opened.Store(true)
	s.judgeRoom()
	s.wg.Go(func() { s.space.Watch(spacePeriod, s.judgeRoom, s.stop) })
	s.opts.Registerer.MustRegister(&collector{server: s}, due.NewCollector(s.due),
		topics.NewCollector(s.topics), workflows.NewCollector(s.workflows))
	return nil
}

// noteGroupsMade durably records that every group and its floor file were created, so that a later start fails if one
// of them is missing. Otherwise an empty group would replace the missing one, and the server could vote twice in a
// term.
func (s *server) noteGroupsMade() error {
	if self := &s.node.self; self.Made && !self.Forming {
		return nil
	}
	return s.node.amend(func(id *datadir.Identity) error {
		id.Made, id.Forming = true, false
		return nil
	})
}

// openGroups opens the groups concurrently, because opening mostly waits for the disk.
func (s *server) openGroups(ctx context.Context) error {
	n := int(s.node.self.Partitions)
	if err := checkFormats(s.opts.Dir, &s.node.self, s.opts.Logger); err != nil {
		return err
	}
	s.groups, s.fresh = make([]*group.Group, n), make([]freshness, n)
	s.keepers, s.actors = make([]*locks.Keeper, n), make([]*actors.Keeper, n)
	s.due, s.topics = make([]*due.Keeper, n), make([]*topics.Keeper, n)
	s.workflows = make([]*workflows.Keeper, n)
	cache := workflows.NewCache(0)
	shared := group.NewMetrics(s.opts.Registerer)
	eg, ctx := errgroup.WithContext(ctx)
	eg.SetLimit(8)
	for i := range n {
		eg.Go(func() error {
			s.keepers[i] = locks.NewKeeper(locks.Options{Logger: s.opts.Logger.With("group", i),
				MaxLocks: s.opts.MaxLocks})
			s.due[i] = due.NewKeeper(due.Options{Logger: s.opts.Logger.With("group", i), Observer: s.metrics.due})
			s.topics[i] = topics.NewKeeper(topics.Options{Group: uint32(i), Logger: s.opts.Logger.With("group", i)})
			s.workflows[i] = workflows.NewKeeper(workflows.Options{Group: uint32(i),
				Logger: s.opts.Logger.With("group", i), Sender: flowSender{s}, Cache: cache})
			g, err := group.Open(ctx, s.groupOptions(uint32(i), shared))
			if err != nil {
				return fault.Wrap(err, "raftfsm.Open", "group "+strconv.Itoa(i))
			}
			s.groups[i] = g
			s.keepers[i].Attach(recordGroup{g})
			s.actors[i] = actors.NewKeeper(actors.Patience, s.opts.Logger.With("group", i))
			s.actors[i].Attach(actorGroup{g})
			s.due[i].Attach(recordGroup{g})
			s.topics[i].Attach(recordGroup{g})
			s.workflows[i].Attach(recordGroup{g})
			return nil
		})
	}
	return eg.Wait()
}

func (s *server) groupOptions(id uint32, m *group.Metrics) group.Options {
	o, self := s.opts, s.node.self
	me := raft.ServerID(self.Server)
	return group.Options{
		ID: id, Dir: datadir.Group(o.Dir, id), ServerID: me,
		Transport: o.Transport(id, me), Confirmer: peercalls.ConfirmerOf(o.Peers, id),
		Contacts: peercalls.ContactsOf(o.Peers, id),
		Replicas: replicasOf(o.Peers, id), Witnesses: witnessesOf(o.Peers, id), Engine: self.Engine,
		Bootstrap: self.Forming, MustExist: self.Made,
		Server: groupServer{s, id},
		Cache:  s.cache, MemTable: memTable(o.MemTable, self.Partitions), Compacting: s.compacting,
		Timing: o.Timing, Bounds: o.Bounds, Logger: o.Logger, Metrics: m, Fatal: o.Fatal,
		Level: uint8(self.Format), //nolint:gosec // at most command.Version
		Now:   o.Now, Step: o.Step, Locks: s.keepers[id], Due: s.due[id], Topics: s.topics[id],
		Workflows: s.workflows[id],
	}
}

// groupServer implements group.Server for one group.
type groupServer struct {
	server *server
	group  uint32
}

// Owner returns the cluster that the stored identity of this server names.
func (g groupServer) Owner() raftlog.Owner {
	id := g.server.node.current()
	return ownerOf(&id)
}

func (g groupServer) NewLeader(leader raft.ServerID) { g.server.remote.NewLeader(g.group, leader) }

func (g groupServer) Abstain() bool { return g.server.abstains(g.group) }

func (g groupServer) DiskLow() bool { return g.server.space.Low() != nil }

func (g groupServer) FreeDisk() uint64 { return g.server.space.Free() }

func (g groupServer) Wrote(bytes int) { g.server.space.Wrote(uint64(bytes)) } //nolint:gosec // not negative

// Newest returns the result of Cluster.NewestFormat (see Options.Cluster).
func (g groupServer) Newest(id raft.ServerID) (version uint8, known bool) {
	return g.server.opts.Cluster.NewestFormat(string(id))
}

// Raise durably records that the data directory may contain log entries of the given format version.
func (g groupServer) Raise(version uint8) error {
	return g.server.node.amend(func(id *datadir.Identity) error {
		id.Format = max(id.Format, uint32(version))
		return nil
	})
}

// checkFormats returns an error if a newer version of Quorate has written files of any group. It changes no files.
func checkFormats(dir string, id *datadir.Identity, logger *slog.Logger) error {
	for gid := range id.Partitions {
		err := group.CheckFormats(group.Options{
			ID: gid, Dir: datadir.Group(dir, gid), Engine: id.Engine, Logger: logger,
			Fatal: func(err error) { logger.Error("the disk failed", "error", err) },
		})
		if err != nil {
			return fault.Wrap(err, "raftfsm.Open", "group "+utoa(gid))
		}
	}
	return nil
}

// memTable returns the size of one group's memtable in bytes. If no size is configured, each group gets an equal share
// of defaultMemTable, but at least 1 MiB. Pebble takes this memory from the block cache.
func memTable(asked uint64, partitions uint32) uint64 {
	if asked != 0 {
		return asked
	}
	return max(defaultMemTable/uint64(partitions), 1<<20)
}

// partitions implements replica.
func (s *server) partitions() uint32 { return s.node.self.Partitions }

// waitPartitions implements replica. It does not wait, because the stored identity of this server contains the number.
func (s *server) waitPartitions(context.Context) (uint32, error) { return s.node.self.Partitions, nil }

// Leader implements replica.
func (s *server) Leader(gid uint32) raft.ServerID {
	if int(gid) >= len(s.groups) {
		return ""
	}
	return s.groups[gid].Leader()
}

// otherLeader returns the id of the leader of a group if this is another server. It returns "" if this server leads, if
// no leader is known, or if there are no peers.
func (s *server) otherLeader(gid uint32) raft.ServerID {
	if s.opts.Peers == nil {
		return ""
	}
	if to := s.groups[gid].Leader(); to != raft.ServerID(s.node.self.Server) {
		return to
	}
	return ""
}

// waitChange implements replica.
func (s *server) waitChange(ctx context.Context, gid uint32) {
	s.groups[gid].WaitChange(ctx, retryPause)
}

// route implements replica. A server needs no route.
func (s *server) route(uint32) peercalls.Route { return peercalls.Route{} }

// ready implements replica.
func (s *server) ready(gid uint32) error {
	g := s.groups[gid]
	if err := g.Trusted(); err != nil {
		return err
	}
	if g.Leading() || s.otherLeader(gid) != "" && g.CaughtUp() {
		return nil
	}
	switch string(s.Leader(gid)) {
	case "":
	case s.node.self.Server:
		return fault.New(fault.Unavailable, opReady,
			fmt.Sprintf("this server has just been elected to lead group %d", gid))
	default:
		return &fault.Error{Code: fault.Unavailable, Op: opReady,
			Msg:  fmt.Sprintf("the replica of group %d on this server has not caught up", gid),
			Hint: "it copies what it lacks from the leader; see 'quorate status'"}
	}
	return errLeaderless(gid, fmt.Sprintf("group %d has no leader", gid), s.opts.Cluster,
		"it elects one as soon as a majority of its voters can reach each other")
}

const opReady = "raftfsm.Ready"

// errLeaderless returns the error for a group without a known leader. The message is msg, followed by the reason from
// c.NoLeader. The parameter hint is used only if c.NoLeader returns no hint.
func errLeaderless(gid uint32, msg string, c Cluster, hint string) error {
	why, what := c.NoLeader(gid)
	if why != "" {
		msg += ": " + why
	}
	return &fault.Error{Code: fault.Unavailable, Op: opReady, Msg: msg, Hint: cmp.Or(what, hint)}
}

// propose implements replica. It proposes the request here if this server leads the group, and otherwise forwards it
// to the leader. hasValues is true if the request stores values.
func (s *server) propose(ctx context.Context, gid uint32, data group.Encoded, ack group.Ack,
	hasValues bool) (group.Answer, error) {
	if to := s.otherLeader(gid); to != "" {
		return s.remote.Propose(ctx, to, gid, data, ack, hasValues)
	}
	return s.proposeHere(ctx, s.groups[gid], data, ack, hasValues)
}

// ask implements replica.
func (s *server) ask(ctx context.Context, gid uint32, method string, payload []byte) ([]byte, error) {
	if to := s.otherLeader(gid); to != "" {
		return s.remote.Ask(ctx, to, gid, method, payload)
	}
	return s.serve(ctx, method, payload)
}

// readIndex implements replica.
func (s *server) readIndex(ctx context.Context, gid uint32, after raftlog.Position) (group.ReadIndex, group.Holding,
	error) {
	if to := s.otherLeader(gid); to != "" {
		return s.remote.ReadIndex(ctx, to, gid, after)
	}
	return leaderIndex(ctx, s.groups[gid], after)
}

// confirm implements replica. If the position n is committed, confirm compares only the index, because the term in n
// may be higher than that of the entry.
func (s *server) confirm(n session.Seen) (session.Seen, bool) {
	if int(n.Group) >= len(s.groups) {
		return n, false
	}
	g := s.groups[n.Group]
	if !n.Committed {
		return n, g.Holds(n.Pos) == group.Held
	}
	exists := n.Pos.Index <= g.Machine().Applied()
	n.Pos.Term = g.Term() // after the index, as in reading.see
	return n, exists
}

// proposeHere proposes a request to a group of this node. hasValues is true if the request stores values (see
// storesValues). A read-only group refuses such a request with the error of writesAllowed. If the group has the maximum
// number of locks, a request for a new lock is refused with fault.Overloaded.
func (s *server) proposeHere(ctx context.Context, g *group.Group, data group.Encoded, ack group.Ack,
	hasValues bool) (group.Answer, error) {
	if hasValues {
		done, err := s.admitValues(ctx, g.ID(), len(data))
		if err != nil {
			return group.Answer{}, err
		}
		defer done()
	} else if err := s.keepers[g.ID()].Admit(data); err != nil {
		return group.Answer{}, err
	}
	return g.Propose(ctx, data, outcomeKnown(g, ack))
}

// outcomeKnown returns the acknowledgement that makes the outcome of a proposal known. If ack is Durable and an origin
// of the group may expire now, outcomeKnown returns Committed: an entry already in the log could remove the origin of
// the request, so that the request is not applied. In all other cases, outcomeKnown returns ack.
func outcomeKnown(g *group.Group, ack group.Ack) group.Ack {
	if ack == group.Durable && g.Machine().OriginDue() <= g.Now() {
		return group.Committed
	}
	return ack
}

// settle implements replica. If the local replica has answered, settle records no new position, because later reads of
// this replica return no older data anyway.
func (s *server) settle(own *ownWrites, q *query, done []*session.Seen, got given) {
	if got.served != servedLocal {
		settleElsewhere(own, q, done, got)
		return
	}
	if got.ownDone {
		own.settle(q, done)
	}
}

// close implements replica.
func (s *server) close() error {
	s.remote.Close()
	s.wg.Wait()
	errs := make([]error, len(s.groups))
	var closing sync.WaitGroup
	for i, g := range s.groups {
		if s.keepers[i] != nil {
			s.keepers[i].Close()
		}
		if s.actors[i] != nil {
			s.actors[i].Close()
		}
		if s.due[i] != nil {
			s.due[i].Close()
		}
		if s.topics[i] != nil {
			s.topics[i].Close()
		}
		if s.workflows[i] != nil {
			s.workflows[i].Close()
		}
		if g != nil {
			closing.Go(func() { errs[i] = g.Close() })
		}
	}
	closing.Wait()
	if s.cache != nil {
		s.cache.Unref()
	}
	return errors.Join(errs...)
}
