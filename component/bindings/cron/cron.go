// Package cron implements the input binding bindings.cron, which sends events to the application on a schedule. Each
// event is sent at most once in the cluster, not once on every node.
//
// A tick is one point in time of a schedule. Every node computes the same ticks, and the first node that claims a tick
// delivers the event. A tick is lost if no node runs at that time, or if no application is ready.
//
// The package owns the schedules and the claims of ticks. For each component, one goroutine follows the schedule, and
// one goroutine runs for each tick in progress.
package cron

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/timezone"
)

// Type is the component type.
const Type = "bindings.cron"

// The metadata names.
const (
	metadataSchedule = "schedule"
	metadataTimeZone = "timeZone"
)

// claimLife is how long the claim of a tick is stored.
const claimLife = time.Hour

// maxLate is how late a tick may be delivered. An older tick is skipped, because another node may have delivered it,
// and that node's claim may have expired. maxLate is only half of claimLife, because the clocks of the nodes may
// differ.
const maxLate = claimLife / 2

// maxWait is the maximum time before run reads the wall clock again. A longer timer could miss its tick, because timers
// do not notice when the wall clock is set or the machine is suspended.
const maxWait = time.Minute

// maxTicks is the maximum number of ticks that one component claims and delivers at the same time. It bounds the number
// of open requests to an application that does not answer.
const maxTicks = 128

// warnPause is the minimum time between two warnings about maxTicks.
const warnPause = time.Minute

// claimTime is the maximum duration of the call that claims a tick.
const claimTime = 10 * time.Second

// claimRest is how long a claim in progress may continue after close was called. In a cluster without a quorum, a claim
// would otherwise block close for up to claimTime.
const claimRest = 2 * time.Second

// Fields declares the metadata.
func Fields() []component.Field {
	return []component.Field{
		{Name: metadataSchedule, Required: true,
			Check: func(text string) error { _, err := parse(text, time.UTC); return err }},
		{Name: metadataTimeZone, Default: "UTC",
			Check: func(text string) error { _, err := timezone.Load(text); return err }},
	}
}

// Options are the settings of a binding. All fields except Namespace and Now are required.
type Options struct {
	Name, Namespace string // component name and the node's namespace
	Metadata        component.Values
	Claims          bindings.Claims
	Logger          *slog.Logger
	Now             func() time.Time // the wall clock; nil = time.Now
}

// Open reads the schedule. It does no I/O.
func Open(o Options) (bindings.Binding, error) {
	in, err := timezone.Load(o.Metadata.Text(metadataTimeZone))
	if err != nil {
		return bindings.Binding{}, err
	}
	schedule, err := parse(o.Metadata.Text(metadataSchedule), in)
	if err != nil {
		return bindings.Binding{}, err
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	c := &clock{options: o, schedule: schedule, zone: in, slots: make(chan struct{}, maxTicks)}
	c.stopped, c.stop = context.WithCancel(context.Background())
	c.life, c.end = context.WithCancel(context.Background())
	return bindings.Binding{Input: c, Close: c.close}, nil
}

// clock delivers the ticks of one component.
type clock struct {
	options  Options
	schedule schedule
	zone     *time.Location
	slots    chan struct{}   // has one value for each tick that is being claimed or delivered
	warned   time.Time       // time of the last warning about maxTicks; only the goroutine of run uses it
	stopped  context.Context // its end stops the schedule
	stop     context.CancelFunc
	life     context.Context // its end cancels claims and deliveries
	end      context.CancelFunc
	once     sync.Once
	running  sync.WaitGroup
}

// Start implements bindings.Input. The first event is for the first tick after the call. A second call returns
// fault.Internal.
func (c *clock) Start(_ context.Context, sink bindings.Sink) error {
	var err error = fault.New(fault.Internal, "cron.Start", "it has been started already")
	c.once.Do(func() {
		err = nil
		c.running.Go(func() { c.run(sink) })
	})
	return err
}

// close stops the schedule and waits for the ticks in progress. It waits for deliveries until ctx ends, because no
// other node will deliver these ticks. It waits for claims only up to claimRest.
func (c *clock) close(ctx context.Context) error {
	c.stop()
	defer c.end()
	done := make(chan struct{})
	go func() { c.running.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		c.end()
		<-done
	}
	return nil
}

// run waits for each tick, and delivers it in a separate goroutine, so that a slow application does not delay later
// ticks. If the wall clock is set back, run reaches the same ticks again. Such a tick is not delivered again while its
// claim is stored.
func (c *clock) run(sink bindings.Sink) {
	for at := c.now(); ; {
		next := c.schedule.next(at)
		if next.IsZero() {
			c.options.Logger.Warn("the schedule has no further tick")
			return
		}
		timer := time.NewTimer(min(next.Sub(at), maxWait))
		select {
		case <-c.stopped.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		if at = c.now(); !at.Before(next) {
			c.begin(next, sink)
		}
	}
}

// now returns the wall clock time without a monotonic clock reading, so that comparisons notice changes of the wall
// clock.
func (c *clock) now() time.Time { return c.options.Now().Round(0) }

// begin starts the goroutine that delivers a tick. If maxTicks ticks are already in progress, begin skips the tick,
// and another node may deliver it.
func (c *clock) begin(at time.Time, sink bindings.Sink) {
	select {
	case c.slots <- struct{}{}:
		c.running.Go(func() {
			defer func() { <-c.slots }()
			c.tick(at, sink)
		})
	default:
		if time.Since(c.warned) < warnPause {
			return
		}
		c.warned = time.Now()
		c.options.Logger.Warn("ticks are skipped on this node: too many earlier ticks are being delivered", "tick", at,
			"limit", maxTicks, "hint", "look why the application does not answer")
	}
}

// tick delivers a tick if this node is the first to claim it.
func (c *clock) tick(at time.Time, sink bindings.Sink) {
	if !sink.Ready() {
		return // another node may have a ready application
	}
	ctx, cancel := context.WithTimeout(c.life, claimTime)
	defer cancel()
	defer context.AfterFunc(c.stopped, func() { time.AfterFunc(claimRest, cancel) })()
	first, err := c.options.Claims.Claim(ctx, c.key(at), claimLife)
	switch {
	case err != nil:
		c.options.Logger.Warn("a tick could not be claimed and is skipped", "tick", at, "error", err)
		return
	case !first:
		return
	}
	if late := c.now().Sub(at); late > maxLate { // checked after the claim, which a suspended node makes too late
		c.options.Logger.Warn("a tick is skipped, because it is too old, and another node may have delivered it",
			"tick", at, "late", late.Round(time.Second), "hint", "look why the machine stopped or its clock was set")
		return
	}
	_, err = sink.Deliver(c.life, bindings.Event{Claimed: true, Metadata: map[string]string{
		"readTimeUTC": at.UTC().Format(time.RFC3339), metadataTimeZone: c.zone.String(),
	}})
	if err != nil {
		c.options.Logger.Warn("the application did not handle a tick", "tick", at, "error", err)
	}
}

// key returns the name of a tick, which is the same on every node.
func (c *clock) key(at time.Time) string {
	return c.options.Namespace + "/" + c.options.Name + "/" + strconv.FormatInt(at.Unix(), 10)
}

// schedule computes ticks. The method next returns the first tick after a time, or the zero time if there is none.
type schedule interface {
	next(after time.Time) time.Time
}

// parse parses a cron expression. It has five fields, or six fields with the seconds first, or is a shorthand such as
// @hourly or @every 15m. The time zone is the given location, unless the text begins with a prefix such as
// CRON_TZ=Europe/Lisbon.
func parse(text string, in *time.Location) (schedule, error) {
	if name, rest, found := timezone.Cut(text); found {
		var err error
		if in, err = timezone.Load(name); err != nil {
			return nil, fault.New(fault.Invalid, "cron.Open", "has a time zone that "+fault.Text(err))
		}
		text = rest
	}
	parser := cron.NewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow |
		cron.Descriptor)
	parsed, err := parser.Parse(text)
	if err != nil {
		return nil, &fault.Error{Code: fault.Invalid, Op: "cron.Open", Msg: "is not a schedule",
			Hint: `write it as "*/5 * * * *", with seconds as "0 */5 * * * *", or "@every 15m"`}
	}
	if every, ok := parsed.(cron.ConstantDelaySchedule); ok {
		return period(every.Delay), nil
	}
	return expression{parsed, in}, nil
}

// expression is a cron expression in a time zone.
type expression struct {
	schedule cron.Schedule
	in       *time.Location
}

func (e expression) next(after time.Time) time.Time { return e.schedule.Next(after.In(e.in)) }

// period is a schedule with a fixed interval, such as @every 15m. It counts intervals from the start of 1970, so that
// all nodes compute the same ticks.
type period time.Duration

func (p period) next(after time.Time) time.Time {
	step := int64(time.Duration(p) / time.Second)
	return time.Unix((after.Unix()/step+1)*step, 0)
}
