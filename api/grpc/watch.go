package grpc

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/runtimepb"
	"github.com/quorate/quorate/component/state"
)

// watchServer implements the service quorate.runtime.v1.State, which Dapr does not have.
type watchServer struct {
	runtimepb.UnimplementedStateServer
	*core
	state *api.State
}

// Watch sends the changes of the application's keys until the client leaves or the watch ends.
func (s *watchServer) Watch(in *runtimepb.WatchRequest, out grpc.ServerStreamingServer[runtimepb.WatchEvent]) error {
	request := api.WatchRequest{Store: in.GetStoreName(), Prefix: in.GetPrefix(), Keys: in.GetKeys(),
		HasBoth: in.GetPrefix() != "" && len(in.GetKeys()) > 0, From: in.GetFrom(), Snapshot: in.GetSnapshot(),
		Session: first(out.Context(), keySession)}
	if text := in.GetBookmark(); text != "" {
		var err error
		if request.Bookmark, err = time.ParseDuration(text); err != nil || request.Bookmark == 0 {
			return api.MalformedRequest("bookmark must be a duration such as 15s")
		}
	}
	ctx, cancel := context.WithTimeout(out.Context(), s.timeout)
	w, err := s.state.Watch(ctx, request)
	cancel()
	if err != nil {
		return err
	}
	t := &watchStream{out: out, watch: w, values: !in.GetOmitValues(),
		snapshot: request.Snapshot, stall: s.stall, cut: func() {}}
	if a := arrivalOf(out.Context()); a != nil {
		t.cut = a.cancel
	}
	err = t.run()
	if t.stalled.Load() { // grpc-go has answered with Canceled
		w.Close(&state.WatchEnd{Reason: state.WatchSlow})
		return err
	}
	w.Close(err)
	if t.failure != nil {
		return t.failure
	}
	return err
}

// watchStream sends the events of one watch.
type watchStream struct {
	out      grpc.ServerStreamingServer[runtimepb.WatchEvent]
	watch    *api.Watch
	values   bool
	snapshot bool   // the items of the snapshot are still being sent
	cut      func() // ends the call
	stall    time.Duration

	stalled atomic.Bool // the client has taken nothing for the duration stall
	failure *api.Error  // the error that ended the watch; nil = the client has gone
}

func (t *watchStream) run() error {
	if t.watch.Session != "" {
		if err := t.out.SendHeader(metadata.Pairs(keySession, t.watch.Session)); err != nil {
			return err
		}
	}
	if !t.snapshot {
		if err := t.bookmark(); err != nil {
			return err
		}
	}
	for {
		part, err := t.watch.Next(t.out.Context())
		if err != nil {
			if t.out.Context().Err() == nil {
				var reason, resume string
				t.failure, reason, resume = t.watch.EndOf(err)
				_ = t.send(&runtimepb.WatchEvent{Type: "error", ErrorCode: t.failure.Code, Message: t.failure.Message,
					Reason: reason, Resume: resume}) // the client may have gone
			}
			return err
		}
		if err := t.part(&part); err != nil {
			return err
		}
	}
}

func (t *watchStream) part(p *state.WatchPart) error {
	for i := range p.Items {
		if err := t.change("item", &p.Items[i]); err != nil {
			return err
		}
	}
	if p.Synced {
		t.snapshot = false
		if err := t.send(&runtimepb.WatchEvent{Type: "synced", Revision: strconv.FormatUint(p.Seen, 10),
			Position: t.watch.Position()}); err != nil {
			return err
		}
	}
	for i := range p.Changes {
		kind := "put"
		if p.Changes[i].Deleted {
			kind = "delete"
		}
		if err := t.change(kind, &p.Changes[i]); err != nil {
			return err
		}
	}
	// A client must not continue from a bookmark within a snapshot.
	if !p.Synced && !t.snapshot && len(p.Items)+len(p.Changes) == 0 {
		return t.bookmark()
	}
	return nil
}

func (t *watchStream) bookmark() error {
	position := t.watch.Position()
	return t.send(&runtimepb.WatchEvent{Type: "bookmark", Revision: position[strings.IndexByte(position, '.')+1:],
		Position: position})
}

func (t *watchStream) change(kind string, c *state.Change) error {
	e := &runtimepb.WatchEvent{Type: kind, Revision: strconv.FormatUint(c.Revision, 10), Key: c.Key}
	if c.Position != 0 {
		e.Position = t.watch.PositionAt(c.Position)
	}
	switch {
	case c.Expired:
		e.Reason = "expired"
	case c.Deleted:
		e.Reason = "deleted"
	default:
		if e.ContentType = c.ContentType; e.ContentType == "" && !json.Valid(c.Value) {
			e.ContentType = state.OctetStream
		}
		if t.values {
			e.Value = c.Value
		}
		if !c.Expires.IsZero() {
			e.TtlExpireTime = state.ExpirySecond(c.Expires).Format(time.RFC3339)
		}
	}
	return t.send(e)
}

// send sends an event to the client. If the client does not receive the event within the stall timeout, send ends the
// call.
func (t *watchStream) send(e *runtimepb.WatchEvent) error {
	stall := time.AfterFunc(t.stall, func() {
		t.stalled.Store(true)
		t.cut()
	})
	defer stall.Stop()
	return t.out.Send(e)
}
