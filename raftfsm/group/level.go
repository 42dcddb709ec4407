package group

import (
	"context"
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
)

// The level of a group is the highest version that its log entries may have. It starts at
// command.First and is raised by an entry of its own, when the first request comes that
// needs more: so that as long as nobody uses what is new, an older build can take over.
//
// Invariants:
//
//   - No entry of a version above the first is proposed before the entry that raised the
//     level to it was applied by the leader that proposes it. That entry is committed then,
//     and stands before it in every log there will ever be.
//   - The level is raised only when each server of the configuration, voter or not, is
//     known to understand it. A server whose version is not known counts as one that does
//     not.
//   - While the level is being raised no server is added, and one that is added understands
//     the level: levels is held for both. It guards one leader's doings; the next leader
//     acts only after it has applied an entry of its own term, and so knows the level that
//     any leader before it raised.
//   - Before an entry of a version is on a disk, so is the note that it will be (Raise).
//     A build that does not understand it does not even open the directory.
//
// A server that is replaced by an older build in spite of all this stops at the entry that
// raised the level, before anything behind it.

// Level returns the highest version that entries of the group may have, as far as this
// server has applied the log.
func (g *Group) Level() uint8 { return g.Machine().Level() }

// allow raises the level, if a request needs that.
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
		if err := g.understands(s.ID, version); err != nil {
			return err
		}
	}
	data, err := command.AppendRequest(nil, &command.Request{Kind: command.KindFormat, Limit: uint32(version)})
	if err != nil {
		return err
	}
	if _, err := g.proposer.propose(ctx, data, Committed); err != nil {
		return fault.Wrap(err, "group.Propose", fmt.Sprintf("the format of group %d could not be raised to %d", g.opts.ID, version))
	}
	g.opts.Logger.Info("log entries of a newer format are used from now on; older versions of the program refuse this data", "group", g.opts.ID, "format", version)
	return nil
}

func (g *Group) lockLevel(ctx context.Context) (release func(), err error) {
	select {
	case g.levels <- struct{}{}:
		return func() { <-g.levels }, nil
	case <-ctx.Done():
		return nil, &fault.Error{Code: fault.Timeout, Op: "group.level", Msg: "the members or the format of the group are being changed", Err: ctx.Err()}
	case <-g.stop:
		return nil, errClosing()
	}
}

// understands refuses a version that a server does not, or may not, understand.
func (g *Group) understands(id raft.ServerID, version uint8) error {
	if g.opts.Newest == nil || id == g.opts.ServerID || version <= command.First {
		return nil
	}
	newest, known := g.opts.Newest(id)
	switch {
	case !known:
		return &fault.Error{Code: fault.Unavailable, Op: "group.level", Key: string(id),
			Msg:  fmt.Sprintf("format %d of log entries is needed, and server %s cannot be asked whether it understands it", version, id),
			Hint: "start that server, or remove it from the cluster, then try again; nothing was changed"}
	case newest < version:
		return &fault.Error{Code: fault.Invalid, Op: "group.level", Key: string(id),
			Msg:  fmt.Sprintf("format %d of log entries is needed, and server %s understands up to %d", version, id, newest),
			Hint: "upgrade that server, then try again; nothing was changed"}
	}
	return nil
}
