package backups

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// errLost ends a backup whose claim another node may have taken.
var errLost = errors.New("its claim could not be renewed, so another node may write a backup")

// holding is the claim of a running backup. Only one goroutine at a time may use it.
type holding struct {
	cluster  Cluster
	id       string // the id of the claim
	record   record
	revision uint64
}

// store writes the record. If the write conflicts with another one, store tries once more, unless this run has lost the
// claim.
func (h *holding) store(ctx context.Context) error {
	revision, err := h.cluster.SetRecord(ctx, h.record.encode(), h.revision)
	if fault.Is(err, fault.Conflict) {
		revision, err = h.again(ctx, err)
	}
	if err == nil {
		h.revision = revision
	}
	return err
}

// again repeats a write of the record that failed with a conflict. An earlier write of this run may have caused the
// conflict, if its answer was lost. If this run no longer has the claim, again writes nothing and returns the given
// error.
func (h *holding) again(ctx context.Context, conflict error) (uint64, error) {
	text, revision, err := h.cluster.Record(ctx)
	if err != nil {
		return 0, err
	}
	if now, err := decode(text); err != nil || now.Claim == nil || now.Claim.ID != h.id {
		return 0, conflict
	}
	return h.cluster.SetRecord(ctx, h.record.encode(), revision)
}

// extend renews the claim once.
func (h *holding) extend(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	c := *h.record.Claim
	c.Renewed++
	h.record.Claim = &c
	return h.store(ctx)
}

// while calls f, renews the claim until f returns, and returns the error of f. If the claim is lost, while cancels the
// context of f, and returns errLost after f has returned.
func (h *holding) while(ctx context.Context, f func(context.Context) error) error {
	ctx, end := context.WithCancelCause(ctx)
	var renewing sync.WaitGroup
	renewing.Go(func() { h.renew(ctx, end) })
	err := f(ctx)
	if context.Cause(ctx) == errLost { //nolint:errorlint // it is never wrapped
		err = errLost
	}
	end(nil)
	renewing.Wait()
	return err
}

// renew renews the claim regularly until ctx ends. The claim counts as lost if another node has it, or if no renewal
// has succeeded for loseAfter. In both cases, renew calls the function lost with errLost, and returns.
func (h *holding) renew(ctx context.Context, lost context.CancelCauseFunc) {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		sent := time.Now()
		err := h.extend(ctx)
		if err == nil {
			last = sent
		}
		if fault.Is(err, fault.Conflict) || time.Since(last) > loseAfter {
			lost(errLost)
			return
		}
	}
}

// release changes the record with the given function, removes the claim from the record, and stores the record. It
// ignores the end of ctx, because the next leader would otherwise have to wait until the claim expires.
func (h *holding) release(ctx context.Context, change func(*record)) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
	defer cancel()
	change(&h.record)
	before := h.record.Claim
	h.record.Claim = nil
	err := h.store(ctx)
	if err != nil {
		h.record.Claim = before
	}
	return err
}
