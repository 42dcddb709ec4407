package eventgrid

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"sync"
	"time"

	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/internal/fault"
)

// The times of the setup.
const (
	// claimLife is how long a node may hold the claim to change the event subscription. The node must finish its
	// requests within this time, because another node can claim the subscription afterwards.
	claimLife = 2 * time.Minute
	// subscribeTime bounds the whole setup, including waiting for another node.
	subscribeTime = 5 * time.Minute
)

// subscriber creates the event subscription in Azure, or corrects its properties. Only one node at a time makes
// changes: the node that holds a claim, which is a cluster-wide lock that expires. The other nodes wait for the result.
type subscriber struct {
	manager  *manager
	settings *inputSettings
	claims   bindings.Claims
	key      string
	log      *slog.Logger

	mu   sync.Mutex // guards held
	held time.Time  // end of this node's claim
}

func newSubscriber(o Options, s *inputSettings) (*subscriber, error) {
	m, err := newManager(s)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(m.address))
	return &subscriber{manager: m, settings: s, claims: o.Claims, log: o.Logger,
		key: o.Namespace + "/" + o.Name + "/subscription/" + hex.EncodeToString(sum[:8])}, nil
}

// ensure returns nil once the subscription is provisioned and delivers to the endpoint. It returns an error after
// subscribeTime at the latest.
func (s *subscriber) ensure(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, subscribeTime)
	defer cancel()
	told := false
	for {
		there, existing, err := s.look(ctx)
		if err != nil || there {
			return err
		}
		mine, until, err := s.claim(ctx)
		if err != nil {
			return err
		}
		if mine {
			return s.set(ctx, until, existing)
		}
		if !told {
			told = true
			s.log.Info("another node sets up the event subscription; waiting for it", "eventSubscription",
				s.settings.name)
		}
		if err := s.pause(ctx); err != nil {
			return err
		}
	}
}

// look reports whether the event subscription exists with the desired properties. While the service is still changing
// the subscription, look waits. If the subscription exists but needs a change, existing is its current document;
// otherwise existing is nil.
func (s *subscriber) look(ctx context.Context) (there bool, existing []byte, err error) {
	for {
		found, document, err := s.manager.get(ctx)
		if err != nil || found == nil {
			return false, nil, err
		}
		if !found.settled() {
			if err := s.pause(ctx); err != nil {
				return false, nil, err
			}
			continue
		}
		full := ""
		if found.hidesQuery(s.settings) {
			if full, err = s.manager.fullAddress(ctx); err != nil {
				return false, nil, err
			}
		}
		if found.matches(s.settings, full) {
			return true, nil, nil
		}
		return false, document, nil
	}
}

// claim tries to get the claim, unless this node has it already. It reports whether this node has the claim, and until
// when.
func (s *subscriber) claim(ctx context.Context) (mine bool, until time.Time, err error) {
	s.mu.Lock()
	until = s.held
	s.mu.Unlock()
	if time.Until(until) > callTime { // this node still has a claim from a setup that failed
		return true, until, nil
	}
	until = time.Now().Add(claimLife)
	if mine, err = s.claims.Claim(ctx, s.key, claimLife); err != nil {
		return false, until, fault.Wrap(err, "eventgrid.Start", "claiming the event subscription among the nodes")
	}
	if mine {
		s.mu.Lock()
		s.held = until
		s.mu.Unlock()
	}
	return mine, until, nil
}

// set creates or changes the event subscription, and waits until the service has finished. existing is the current
// document, or nil if there is no subscription. set returns an error if the service has not finished at expiry, when
// this node's claim ends.
func (s *subscriber) set(ctx context.Context, expiry time.Time, existing []byte) error {
	ctx, cancel := context.WithDeadline(ctx, expiry)
	defer cancel()
	document, err := wanted(s.settings, existing)
	if err != nil {
		return err
	}
	verb := "creating"
	if existing != nil {
		verb = "changing"
	}
	s.log.Info(verb+" the event subscription", "eventSubscription", s.settings.name, "scope", s.settings.scope,
		"endpoint", shown(s.settings.endpoint))
	operation, err := s.manager.put(ctx, document)
	for done := operation == ""; err == nil && !done; {
		if done, err = s.manager.progress(ctx, operation); err == nil && !done {
			err = s.pause(ctx)
		}
	}
	if err != nil {
		return err
	}
	return s.confirm(ctx)
}

// confirm waits until the service has provisioned the event subscription. It returns an error if provisioning failed.
func (s *subscriber) confirm(ctx context.Context) error {
	for {
		found, _, err := s.manager.get(ctx)
		switch {
		case err != nil:
			return err
		case found == nil: // the service is eventually consistent, so try again
		case !found.settled():
		case !found.good():
			return &fault.Error{Code: fault.Unavailable, Op: "eventgrid.Start", Msg: "the event subscription " +
				s.settings.name + " was not provisioned: its state is " + found.Properties.State,
				Hint: "look at the event subscription in the portal"}
		default:
			return nil
		}
		if err := s.pause(ctx); err != nil {
			return err
		}
	}
}

// pause waits for the pollInterval of the component. It returns fault.Timeout if ctx ends first.
func (s *subscriber) pause(ctx context.Context) error {
	timer := time.NewTimer(s.settings.poll)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return &fault.Error{Code: fault.Timeout, Op: "eventgrid.Start", Msg: "the event subscription " +
			s.settings.name + " was not provisioned in time", Err: ctx.Err()}
	}
}
