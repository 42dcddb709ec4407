package raftfsm

import (
	"errors"
	"log/slog"
	"math/rand/v2"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/datadir"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// RescueOptions configure Rescue. Dir, Logger and Agree are required.
type RescueOptions struct {
	Dir    string // data directory of a stopped server
	Logger *slog.Logger
	// Agree receives the content of the directory before Rescue changes anything. It returns whether to continue.
	Agree func(Survey) (bool, error)
	Step  func(step string) // crash points, for tests
}

// Survey describes what a data directory holds of a cluster.
type Survey struct {
	Identity datadir.Identity
	Groups   []group.Survey // ordered by id
}

// Alone reports whether this server needs no rescue: it is the only voter of every group, and no earlier rescue of it
// was interrupted.
func (s *Survey) Alone() bool {
	for _, g := range s.Groups {
		if voters := g.Voters(); len(voters) != 1 || string(voters[0]) != s.Identity.Server {
			return false
		}
	}
	return s.Identity.Rescuing == 0
}

// Rescue makes the server in o.Dir the only voter of all its groups. Use it for a cluster that has permanently lost a
// majority of its voters. The server must not be running. Its data becomes the data of the cluster, including log
// entries that were never committed. If o.Agree returns false, Rescue changes nothing.
//
// Rescue raises the revision counters, so that no ETag is used twice. It also starts a new epoch. The rescued cluster
// refuses servers of the old epoch until their data directories are emptied. If Rescue is interrupted, the server does
// not start until Rescue is run again.
//
// Rescue returns the errors of o.Agree and these errors:
//
//   - fault.Unavailable: the server is running
//   - fault.Corrupt: the directory is damaged
//   - fault.Invalid: the directory belongs to no cluster, a newer version of Quorate has used it, or an operator has
//     removed the server
func Rescue(o RescueOptions) (s Survey, err error) {
	lock, err := datadir.LockDir(o.Dir)
	if fault.Is(err, fault.Unavailable) {
		err = fault.Wrap(err, opRescue, "the server must be stopped first")
	}
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	id, err := rescuable(o.Dir)
	if err != nil {
		return s, err
	}
	s.Identity = *id
	if err := checkFormats(o.Dir, id, o.Logger); err != nil {
		return s, err
	}
	for gid := range id.Partitions {
		g, err := group.Examine(rescueGroup(o, id, gid))
		if err != nil {
			return s, err
		}
		s.Groups = append(s.Groups, g)
	}
	if yes, err := o.Agree(s); err != nil || !yes {
		return s, err
	}
	if id.Rescuing == 0 {
		id.Rescuing = nextEpoch(max(id.Epoch, id.Superseded))
		if err := id.Write(o.Dir); err != nil {
			return s, err
		}
	}
	for gid := range id.Partitions {
		if s.Groups[gid], err = group.Rescue(rescueGroup(o, id, gid)); err != nil {
			return s, err
		}
	}
	id.Epoch, id.Rescuing = id.Rescuing, 0
	s.Identity = *id
	return s, id.Write(o.Dir)
}

const opRescue = "raftfsm.Rescue"

// rescuable reads the identity of a data directory. It returns fault.Invalid if the directory cannot be rescued: it has
// no data, its server belongs to no cluster, or an operator has removed the server.
func rescuable(dir string) (*datadir.Identity, error) {
	id, err := datadir.ReadIdentity(dir)
	switch {
	case err != nil:
		return nil, err
	case id == nil:
		return nil, &fault.Error{Code: fault.Invalid, Op: opRescue, Key: dir, Msg: "there is no data in " + dir,
			Hint: "name the data directory of the surviving server with --data-dir"}
	case id.Cluster == "" || !id.Made || id.Forming:
		return nil, &fault.Error{Code: fault.Invalid, Op: opRescue, Key: dir, Msg: "the server of " + dir +
			" is part of no cluster",
			Hint: "it holds nothing to rescue: start it with --join, or restore a backup"}
	case id.Removed:
		return nil, &fault.Error{Code: fault.Invalid, Op: opRescue, Key: dir, Msg: id.Node +
			" was removed from the cluster by an operator, and may lack later writes",
			Hint: "rescue another server, or restore a backup"}
	}
	return id, nil
}

// epochCount is the number of random low bits in an epoch. The higher bits count the rescues.
//
// If two servers of one cluster are rescued separately by mistake, their epochs differ in the random bits, so that the
// servers refuse each other.
const epochCount = 20

func nextEpoch(epoch uint64) uint64 {
	return (epoch>>epochCount+1)<<epochCount | rand.Uint64N(1<<epochCount)
}

// rescued implements group.Server for the groups of the server that is being rescued. These groups do not run.
type rescued struct {
	group.NoServer
	owner raftlog.Owner
}

func (r rescued) Owner() raftlog.Owner { return r.owner }

func rescueGroup(o RescueOptions, id *datadir.Identity, gid uint32) group.Options {
	return group.Options{
		ID: gid, Dir: datadir.Group(o.Dir, gid), ServerID: raft.ServerID(id.Server),
		Engine: id.Engine, MustExist: true,
		Server: rescued{owner: ownerOf(id)},
		Level:  uint8(id.Format), //nolint:gosec // at most command.Version
		Logger: o.Logger, Fatal: func(err error) { o.Logger.Error("the disk failed", "error", err) }, Step: o.Step,
	}
}
