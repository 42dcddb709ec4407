package group

import (
	"context"
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
)

// The level of a group is the highest version that its log entries may have. A new group begins with the newest
// version, because the server that creates the group raises the level while it is the only member. A newer build does
// not change the level when it opens an existing group. The first request that needs a higher version causes a special
// entry, which raises the level. Until that entry is written, an older build can also run the group.
//
// Invariants:
//
//  - Before a leader proposes an entry of a version above the first, it has applied the entry that raised the level
//    to that version. So the raising entry is committed, and precedes the new entry in every log.
//  - The level is raised only if every server of the configuration, voter or not, can read that version. A server of
//    unknown version counts as one that cannot.
//  - While the level is being raised, no server is added. A server is added only if it can read the level. Both
//    operations hold the lock Group.levels, which works only within one leader. A later leader acts only after it has
//    applied an entry of its own term. It then knows every level that earlier leaders have raised.
//  - Raise records the version durably before an entry of that version is written to a disk. A build that cannot read
//    the version refuses to open the directory.
//
// If a server is replaced by an older build nevertheless, that build stops at the entry that raised the level. It
// applies nothing after that entry.

// begin raises the level of a new group to the newest version of this build. The level is the highest version that the
// log entries of the group may have. This server must be the only member.
func (g *Group) begin(ctx context.Context) error { return g.allow(ctx, g.opts.newest) }

// Level returns the highest format version of log entries that the group may use. Level reads the state machine, so a
// new level takes effect when its entry is applied.
func (g *Group) Level() uint8 { return g.Machine().Level() }

// allow makes sure that the log entries of the group may have the given version. If the level of the group is lower,
// allow raises it. On failure it returns fault.NotLeader, fault.FormatBlocked, fault.Timeout, fault.Overloaded or
// fault.Unavailable.
func (g *Group) allow(ctx context.Context, version uint8) error {
	if version <= g.Level() {
		return nil
	}
	if !g.Leading() {
		return errNotLeader("group.Propose")
	}
	release, err := g.lockLevel(ctx)
	if err != nil {
		return err
	}
	defer release()
	if version <= g.Level() {
		return nil
	}
	servers, _ := g.Servers()
	for _, s := range servers {
		if err := g.checkFormat(s.ID, version); err != nil {
			return err
		}
	}
	data, err := command.AppendRequest(nil, &command.Request{Kind: command.KindFormat, Limit: uint32(version)})
	if err != nil {
		return err
	}
	if _, err := g.proposer.propose(ctx, data, Committed); err != nil {
		if fault.Is(err, fault.Indeterminate) { // only the new level is uncertain: the request was not proposed
			err = &fault.Error{Code: fault.NotLeader, Op: "group.Propose",
				Msg: "it is not known whether the change took effect", Err: err}
		}
		return fault.Wrap(err, "group.Propose", fmt.Sprintf("the format of group %d could not be raised to %d",
			g.opts.ID, version))
	}
	g.opts.Logger.Info("log entries of a newer format are used from now on; older versions of the program refuse "+
		"this data", "group", g.opts.ID, "format", version)
	return nil
}

func (g *Group) lockLevel(ctx context.Context) (release func(), err error) {
	select {
	case g.levels <- struct{}{}:
		return func() { <-g.levels }, nil
	case <-ctx.Done():
		return nil, &fault.Error{Code: fault.Timeout, Op: "group.level",
			Msg: "the members or the format of the group are being changed", Err: ctx.Err()}
	case <-g.stop:
		return nil, errClosing()
	}
}

// FormatBlocked returns an error if the group cannot use the newest log format of this build. The reason is a server of
// the group that cannot read this format or has an unknown version. In this state, the group refuses only the requests
// that need the format.
func (g *Group) FormatBlocked() error {
	if g.Level() >= g.opts.newest {
		return nil
	}
	servers, _ := g.Servers()
	for _, s := range servers {
		if err := g.checkFormat(s.ID, g.opts.newest); err != nil {
			return err
		}
	}
	return nil
}

// checkFormat returns nil if the given server can read log entries of the given format version. It returns
// fault.FormatBlocked if the server is too old, or if its version is unknown.
func (g *Group) checkFormat(id raft.ServerID, version uint8) error {
	if id == g.opts.ServerID || version <= command.First {
		return nil
	}
	newest, known := g.opts.Server.Newest(id)
	switch {
	case !known:
		return &fault.Error{Code: fault.FormatBlocked, Op: "group.level", Key: string(id),
			Msg: fmt.Sprintf("format %d of log entries is needed, and the version of server %s is not known", version,
				id),
			Hint: "start that server, or remove it from the cluster, then try again; nothing was changed"}
	case newest < version:
		return &fault.Error{Code: fault.FormatBlocked, Op: "group.level", Key: string(id),
			Msg: fmt.Sprintf("format %d of log entries is needed, and server %s understands up to %d", version,
				id, newest),
			Hint: "upgrade that server, then try again; nothing was changed"}
	}
	return nil
}
