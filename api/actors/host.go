package actors

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lifecycle"
)

// Intervals, timeouts and limits of a host. A renewed lease is valid for leaseTime, counted from when the renewal was
// sent. Package raftfsm/actors describes the rules for leases.
const (
	renewEvery  = 200 * time.Millisecond
	leaseTime   = 800 * time.Millisecond
	retryPause  = 500 * time.Millisecond
	configEvery = time.Second
	idleEvery   = time.Second // between checks for idle actors
	releaseTime = 10 * time.Second
	cancelTime  = time.Second // time for a canceled turn to end
	batch       = 500         // activations released in one request
	parallel    = 32          // actors that are activated or deactivated at a time
)

// Host hosts the actors of one application of this node. It is safe for concurrent use.
type Host struct {
	app      string
	parts    *Options
	log      *slog.Logger
	begun    time.Time
	running  sync.WaitGroup
	turns    lifecycle.Tracker
	life     context.Context
	end      context.CancelFunc
	turnLife context.Context // context of the turns in the application, which outlive their callers
	endTurns context.CancelFunc

	mu        sync.Mutex
	current   App // the application, or its newest stream
	config    Config
	directory Directory
	session   string // empty = it has none
	revision  uint64
	valid     time.Time     // end of the lease
	renewed   chan struct{} // closed at the next renewal
	actors    map[api.Actor]*activation
	chains    map[string]int         // by call chain with running turns: number of actors it has entered
	kept      map[api.Actor]struct{} // actors whose activation has ended, but which the application may still have
	holding   bool                   // Holdings has recorded that the application may hold actors
	earlier   map[api.Actor]struct{} // see maxEarlier; nil = the previous process ended cleanly
	asked     bool                   // no call needs to wait for the types of the application
	tried     bool                   // the first attempt to register its types has ended
	giving    bool                   // transfers actors to another host, to spread them
	active    bool                   // the goroutine of run exists
	draining  bool
	drained   bool // drain has released the actors of the host
	closed    bool
}

func newHost(app string, o *Options) *Host {
	h := &Host{app: app, parts: o, log: o.Logger.With("app_id", app), begun: time.Now(),
		renewed: make(chan struct{}), actors: map[api.Actor]*activation{}, kept: map[api.Actor]struct{}{},
		chains: map[string]int{}}
	h.life, h.end = context.WithCancel(context.Background())
	h.turnLife, h.endTurns = context.WithCancel(context.Background())
	return h
}

// application returns the current connection to the application. The host executes turns over this connection.
func (h *Host) application() App {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.current
}

// returned is called when the application accepts calls again. It makes the connection a the current connection, and
// starts the goroutine of Host.run if that goroutine is not running. It ignores an HTTP connection while the
// application has a healthy stream.
func (h *Host) returned(a App) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, http := a.(*httpApp); http && h.current != nil {
		if _, stream := h.current.(*httpApp); !stream {
			if healthy, _ := h.current.Healthy(); healthy {
				return
			}
		}
	}
	h.current = a
	if h.active || h.closed || h.draining {
		return
	}
	h.active = true
	h.running.Go(h.run)
}

// serves reports whether the connection a accepts calls and is the current connection to the application. If not, it
// also returns the reason.
func (h *Host) serves(a App) (bool, string) {
	if h.application() != a {
		return false, "another stream of the application has begun"
	}
	return a.Healthy()
}

// run hosts the actors of the application. It returns when the application is unhealthy or hosts no actors, or when
// the host closes.
func (h *Host) run() {
	for {
		a := h.application()
		c, ok := h.askConfig(a)
		ok = ok && len(c.Types) > 0
		hosts := ok && h.claim(a, c)
		h.setAsked()
		if hosts {
			h.serve(a)
		}
		h.mu.Lock()
		again := h.current != a
		if !again && ok {
			again, _ = a.Healthy()
		}
		if !again || h.life.Err() != nil || h.draining {
			h.active = false
			h.mu.Unlock()
			return
		}
		h.mu.Unlock()
	}
}

// askConfig requests the configuration of the application until the application answers. It returns false in these
// cases:
//
//   - The application has no configuration endpoint.
//   - The application becomes unhealthy.
//   - Another connection replaces a.
//   - The host closes.
func (h *Host) askConfig(a App) (c Config, ok bool) {
	said := false
	for h.life.Err() == nil {
		if serves, _ := h.serves(a); !serves {
			return c, false
		}
		c, known, err := a.Config(h.life)
		if err == nil && known {
			return c, true
		}
		if err == nil {
			return c, false // the application has no such endpoint
		}
		h.setTried()
		if !said && h.life.Err() == nil {
			h.log.Warn("the application does not say which actors it hosts", "error", fault.Text(err),
				"hint", "answer GET /dapr/config with 200, or with 404 if there are none")
			said = true
		}
		sleep(h.life, configEvery)
	}
	return c, false
}

// claim registers the application in the directory as a host of the actor types of c. It retries until it succeeds.
// It returns false if the application becomes unhealthy, if another connection replaces a, or if the host closes.
func (h *Host) claim(a App, c Config) bool {
	said := ""
	for h.life.Err() == nil {
		if serves, _ := h.serves(a); !serves {
			return false
		}
		d, err := h.claimAll(c)
		if err == nil {
			h.beginHolding()
			h.mu.Lock()
			h.config, h.directory = c, d
			h.mu.Unlock()
			return true
		}
		h.setTried()
		if fault.Is(err, fault.Conflict) {
			h.setAsked()
		}
		if text := fault.Text(err); text != said && h.life.Err() == nil {
			h.log.Warn("the application cannot host its actors", "error", text)
			said = text
		}
		sleep(h.life, retryPause)
	}
	return false
}

func (h *Host) claimAll(c Config) (d Directory, err error) {
	ctx, cancel := context.WithTimeout(h.life, 10*time.Second)
	defer cancel()
	for _, kind := range slices.Sorted(maps.Keys(c.Types)) {
		if d, err = h.parts.Directories.Claim(ctx, h.app, kind); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// serve registers a session of the host and renews it. It returns when the application is unhealthy, when another
// connection of the application replaces the connection a, or when the host closes.
func (h *Host) serve(a App) {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	var renewals, scans sync.WaitGroup
	defer renewals.Wait()
	defer scans.Wait()
	lost := make(chan string, 1)
	var scanning sync.Mutex
	looked := time.Now()
	for h.life.Err() == nil {
		if serves, why := h.serves(a); !serves {
			h.log.Warn("the application does not host its actors until it is healthy", "reason", why)
			h.leaveSession()
			return
		}
		h.mu.Lock()
		session := h.session
		h.mu.Unlock()
		if session == "" && !h.register() {
			sleep(h.life, renewEvery)
			continue
		}
		renewals.Go(func() { h.renew(lost) })
		if time.Since(looked) >= idleEvery && scanning.TryLock() {
			looked = time.Now()
			scans.Go(func() {
				defer scanning.Unlock()
				h.deactivateIdle()
				h.dropEnded()
			})
		}
		select {
		case gone := <-lost:
			h.dropSession(gone)
		case <-tick.C:
		case <-h.life.Done():
		}
	}
}

// register begins a session in the directory, and reports whether this succeeded.
func (h *Host) register() bool {
	ctx, cancel := context.WithTimeout(h.life, 5*time.Second)
	defer cancel()
	r := Registration{Session: h.parts.NewID()}
	h.mu.Lock()
	r.Types, r.Draining = slices.Sorted(maps.Keys(h.config.Types)), h.draining
	d, closed := h.directory, h.closed
	h.mu.Unlock()
	if closed {
		return false // close has ended the session in the directory, or lets it expire
	}
	sent := time.Now()
	revision, err := d.Register(ctx, r)
	if err != nil {
		if h.life.Err() == nil {
			h.log.Warn("the session of a host of actors cannot begin; it is tried again", "error", fault.Text(err))
		}
		return false
	}
	h.parts.Metrics.sessions.WithLabelValues(h.app, sessionBegun).Inc()
	h.mu.Lock()
	h.session, h.revision = r.Session, revision
	h.mu.Unlock()
	h.extend(r.Session, sent.Add(-leaseTime)) // valid from the first renewal on
	h.log.Info("the application hosts actors", "types", r.Types, "session", r.Session)
	return true
}

// renew renews the session once. If the session has ended, renew sends the id of the session to the channel lost.
func (h *Host) renew(lost chan<- string) {
	h.mu.Lock()
	session, count, d := h.session, len(h.actors), h.directory
	gives := h.givesLocked()
	h.mu.Unlock()
	if session == "" {
		return
	}
	ctx, cancel := context.WithTimeout(h.life, leaseTime)
	defer cancel()
	sent := time.Now()
	p, err := d.Renew(ctx, session, count, gives)
	h.parts.Metrics.renewals.WithLabelValues(h.app, outcomeOf(err)).Inc()
	switch {
	case err == nil:
		h.extend(session, sent)
		h.adopt(p.Take)
		h.give(&p)
	case fault.Is(err, fault.NotFound):
		select {
		case lost <- session:
		default:
		}
	}
}

// extend makes the lease valid for leaseTime after sentAt, the time at which a renewal was sent. It does nothing if the
// session has ended.
func (h *Host) extend(session string, sentAt time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if until := sentAt.Add(leaseTime); session == h.session && until.After(h.valid) {
		h.valid = until
		close(h.renewed)
		h.renewed = make(chan struct{})
	}
}

// dropSession ends all activations of a session that has ended.
func (h *Host) dropSession(session string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.session != session || session == "" {
		return
	}
	h.log.Warn("the session of this host of actors has ended: its actors may run on other nodes now",
		"actors", len(h.actors), "session", session, "hint", "look for a slow network, or a paused process")
	h.parts.Metrics.sessions.WithLabelValues(h.app, sessionLost).Inc()
	h.forgetLocked()
}

func (h *Host) forgetLocked() {
	h.session, h.revision, h.valid = "", 0, time.Time{}
	close(h.renewed)
	h.renewed = make(chan struct{})
	for _, a := range h.actors {
		if a.starting == nil { // otherwise activate finds that the session has ended
			h.retireLocked(a, reasonSession)
			h.settleLocked(a)
		}
	}
}

// leaveSession ends all activations of this host, and then the session of this host in the directory.
func (h *Host) leaveSession() {
	h.mu.Lock()
	session, d := h.session, h.directory
	h.forgetLocked()
	h.mu.Unlock()
	if session == "" {
		return
	}
	h.parts.Metrics.sessions.WithLabelValues(h.app, sessionLeft).Inc()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(h.life), 5*time.Second)
	defer cancel()
	if err := d.Leave(ctx, session); err != nil {
		h.log.Warn("the session of this host of actors was not ended; the leader ends it soon", "error",
			fault.Text(err))
	}
}

// leased waits until the host has a valid lease. If the host gets none within Options.PlaceTime, leased returns
// fault.Unavailable. If the session of the activation has ended or the activation is retired, another host may own the
// actor, so leased returns fault.ActorMoved. Reentrant calls may continue in a retired activation, because they belong
// to a turn that has already begun.
func (h *Host) leased(ctx context.Context, a *activation) error {
	limit := time.NewTimer(h.parts.PlaceTime)
	defer limit.Stop()
	for {
		h.mu.Lock()
		ours := a.session == h.session && (!a.gone || a.depth > 1) // a reentrant call belongs to a turn that has begun
		valid, renewed := time.Now().Before(h.valid), h.renewed
		h.mu.Unlock()
		switch {
		case !ours:
			return errMoved("the session of the host has ended")
		case valid:
			return nil
		}
		select {
		case <-renewed:
		case <-limit.C:
			return fault.New(fault.Unavailable, "actors.Call", "this node has no contact with the leader of the "+
				"directory of actors, so it starts no calls")
		case <-ctx.Done():
			return errGaveUp(ctx)
		}
	}
}

// holds reports whether the session of the activation is still current and the lease is valid. If so, the host still
// owns the actor, and may return the actor's answers to callers.
func (h *Host) holds(a *activation) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return a.session == h.session && time.Now().Before(h.valid)
}

// deactivateIdle deactivates the actors that had no turn for their idle timeout.
func (h *Host) deactivateIdle() {
	h.mu.Lock()
	now := time.Since(h.begun)
	var idle []*activation
	for _, a := range h.actors {
		if a.starting == nil && !a.running && !a.gone && a.session == h.session &&
			now-a.last >= a.settings.IdleTimeout {
			h.retireLocked(a, reasonIdle)
			a.leaving = true
			idle = append(idle, a)
		}
	}
	h.mu.Unlock()
	for some := range slices.Chunk(idle, batch) {
		h.deactivate(h.turnLife, some, Target{})
	}
}

// dropEnded notifies the application that actors were deactivated because the session of the host ended. The
// application can then free the memory of these actors.
func (h *Host) dropEnded() {
	h.mu.Lock()
	var ended []*activation
	for key := range h.kept {
		if h.actors[key] == nil && len(ended) < batch {
			a := newActivation(key, &TypeConfig{DrainTimeout: defaultDrain})
			a.starting = nil
			a.gone, a.leaving, a.dropped = true, true, false // calls wait until the activation is removed
			h.actors[a.key] = a
			delete(h.kept, key)
			ended = append(ended, a)
		}
	}
	h.mu.Unlock()
	h.dropAll(h.turnLife, ended)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range ended {
		h.removeLocked(a)
	}
}

// dropAll informs the application that actors are deactivated.
func (h *Host) dropAll(ctx context.Context, all []*activation) {
	slots := make(chan struct{}, parallel)
	var dropping sync.WaitGroup
	for _, a := range all {
		slots <- struct{}{}
		dropping.Go(func() {
			_ = h.drop(ctx, a) // after an error, activate calls drop again
			<-slots
		})
	}
	dropping.Wait()
}

// deactivate notifies the application that the given actors are deactivated, transfers the actors to the target host,
// and removes their activations here. If target is zero, the actors are only released in the directory, so that any
// host can activate them.
//
// All given activations must be retired. Unless the host is draining, each of them must also have the field leaving set
// and no running turn.
func (h *Host) deactivate(ctx context.Context, all []*activation, target Target) {
	if len(all) == 0 {
		return
	}
	h.dropAll(ctx, all)
	released := make([]Released, len(all))
	for i, a := range all {
		released[i] = Released{Type: a.key.Type, ID: a.key.ID, Epoch: a.epoch}
	}
	h.release(ctx, released, target)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range all {
		h.removeLocked(a)
	}
}

// release transfers activations in the directory to the target host. If target is zero or accepts no actors, release
// only removes the activations from the directory.
//
// release repeats its request until the directory has answered, the session of this host has ended, or ctx ends. This
// host must not activate the actors again before release has returned, because a late request could remove the new
// activation, which would have the same epoch.
func (h *Host) release(ctx context.Context, released []Released, target Target) {
	h.mu.Lock()
	session, d := h.session, h.directory
	h.mu.Unlock()
	for {
		limit, cancel := context.WithTimeout(ctx, releaseTime)
		var err error
		if target.Session != "" {
			err = d.Transfer(limit, released, target)
		}
		if target.Session == "" || fault.Is(err, fault.NotFound) {
			err = d.Release(limit, released)
		}
		cancel()
		if err == nil || ctx.Err() != nil {
			return
		}
		h.mu.Lock()
		ended := h.session != session || session == ""
		h.mu.Unlock()
		if ended {
			return
		}
		h.log.Warn("deactivated actors are not released yet; their calls wait until they are", "error", fault.Text(err))
		sleep(ctx, retryPause)
	}
}

// owns reports whether an actor is active here, or is being activated.
func (h *Host) owns(key api.Actor) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	a := h.actors[key]
	return a != nil && !a.gone
}

// hosts reports whether the application has registered actor types.
func (h *Host) hosts() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.config.Types) > 0
}

// hostsType reports whether the application has registered the given actor type.
func (h *Host) hostsType(kind string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, hosted := h.config.Types[kind]
	return hosted
}

// setAsked records that calls no longer wait for the actor types of the application. It is called when the application
// has not listed its types, when the registration of the types has ended, or when the directory has refused them.
func (h *Host) setAsked() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked, h.tried = true, true
}

// setTried records that the first attempt to register the types of the application has ended.
func (h *Host) setTried() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tried = true
}

// wasTried reports whether the first attempt to register the types of the application has ended.
func (h *Host) wasTried() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.tried
}

// starting reports whether the host runs, but calls still wait for the actor types of the application (see setAsked).
func (h *Host) starting() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.active && !h.asked
}

// epoch returns the epoch and the session token of an active actor. Each write of the actor's state must carry the
// epoch. ok is false if the actor is not active here.
func (h *Host) epoch(key api.Actor) (e *state.ActorEpoch, token string, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a := h.actors[key]
	if a == nil || a.epoch == 0 || a.session != h.session {
		return nil, "", false
	}
	return a.epochOf(h.app), a.token, true
}

// wrote handles the result of a state write by the activation with the given epoch. If moved is true, another host owns
// the actor, so wrote ends the activation. Otherwise wrote stores the new session token.
func (h *Host) wrote(key api.Actor, epoch uint64, token string, moved bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a := h.actors[key]
	switch {
	case a == nil || a.epoch != epoch:
	case moved:
		a.session = "" // its writes and answers are refused from now on
		h.parts.Metrics.refused.WithLabelValues(key.Type).Inc()
		h.retireLocked(a, reasonRefused)
		h.settleLocked(a)
	case token != "":
		a.token = token
	}
}

// counts returns the number of actors of each type that this host owns or is activating. Types without actors have the
// count 0, and are included only while the application is healthy.
func (h *Host) counts() map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[string]int{}
	if h.current != nil {
		if healthy, _ := h.current.Healthy(); healthy {
			for t := range h.config.Types {
				out[t] = 0
			}
		}
	}
	for key := range h.actors {
		out[key.Type]++
	}
	return out
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func utoa(n uint64) string { return strconv.FormatUint(n, 10) }
