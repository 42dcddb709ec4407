package raftfsm

import (
	"context"
	"os"
	"path/filepath"
)

// count asks how many partitions the cluster has that this server is to join; 0 if the
// settings say it, or nobody can tell.
func (h *Host) count(ctx context.Context) uint32 {
	if h.opts.Partitions != 0 || h.opts.Count == nil {
		return 0
	}
	return h.opts.Count(ctx, h.identity.Node)
}

// recount gives a directory that waits for a cluster the partitions of that cluster, should
// it have been made with another number. Its groups hold nothing: before it belongs to a
// cluster nobody speaks to them, and it has no vote in them. A crash in between is made
// good by the next start, which comes here again.
func (h *Host) recount(ctx context.Context) error {
	id := &h.identity
	if id.Cluster != "" || id.Forming || id.Removed {
		return nil
	}
	n := h.count(ctx)
	if n == 0 || n == id.Partitions {
		return nil
	}
	h.opts.Logger.Info("this directory takes the number of partitions of the cluster that it joins", "dir", h.opts.Dir, "had", id.Partitions, "partitions", n)
	id.Partitions, id.Made = n, false
	if err := id.write(h.opts.Dir); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(h.opts.Dir, "groups")); err != nil {
		return dirError(err, h.opts.Dir)
	}
	return nil
}
