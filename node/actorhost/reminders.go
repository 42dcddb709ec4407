package actorhost

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/actors"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/due"
)

const (
	// perInstance is the maximum number of reminder ticks in progress at one instance of an application. A tick is one
	// execution of a reminder at one of its due times.
	perInstance = 128
	// persist is the interval of retries of a one-shot reminder that has no failure policy.
	persist = 30 * time.Second
	// maxWait is the maximum wait of a timer in milliseconds. It is about 200 years, which a time.Duration can
	// represent.
	maxWait = 200 * 365 * 24 * 3600 * 1000
	// maxListed is how many reminders are read at once.
	maxListed = 1000
)

// reminders implements actors.Reminders and due.Deliverer. It stores each reminder as due work (see package due) in the
// Raft group of the actor. The due.Home of the work identifies the store and the application. The name of the work is
// TYPE||ID||REMINDER, where ID is the stored form of the actor id (see state.StoredActorID).
type reminders struct{ host *Host }

const separator = state.Separator

// payload is the payload of the due work that stores a reminder.
type payload struct {
	DueTime string          `json:"dueTime"`
	Period  string          `json:"period"`
	TTL     string          `json:"ttl,omitempty"`
	Data    json.RawMessage `json:"data,omitempty"`
}

func workName(a api.Actor, name string) string {
	return a.Type + separator + state.StoredActorID(a.ID) + separator + name
}

// home returns the due.Home for the reminders of an actor type, and the client to access it. It returns fault.NotFound
// if the application app does not host the type.
func (r reminders) home(ctx context.Context, app, kind string) (due.Client, due.Home, error) {
	o := &r.host.options
	c, err := r.host.connection()
	if err != nil {
		return due.Client{}, due.Home{}, err
	}
	t, err := r.host.directories.find(ctx, c, knownKey{o.Namespace, kind})
	if err == nil && t.App != app {
		err = fault.New(fault.NotFound, "actors.Reminder",
			"actors of type "+kind+" are hosted by the application "+t.App)
	}
	if err != nil {
		return due.Client{}, due.Home{}, err
	}
	return c.store.DueWork(), due.Home{Kind: due.KindReminder, Store: o.Namespace + "/" + t.Store, Prefix: t.App}, nil
}

// schedule converts the period of a reminder to a schedule of package due. For example, "R5/PT10S" gives "PT10S" and 5
// ticks. If ticks is 0, the number of ticks is not limited.
func schedule(period string) (text string, ticks uint64, err error) {
	bad := func(why string) error { return fault.New(fault.Invalid, "actors.Reminder", "period: "+why) }
	if rest, found := strings.CutPrefix(period, "R"); found {
		count, rest, found := strings.Cut(rest, "/")
		if count != "" {
			if ticks, err = strconv.ParseUint(count, 10, 32); err != nil || ticks == 0 {
				return "", 0, bad("the number of ticks after R must be at least 1")
			}
		}
		if period = rest; !found || !strings.HasPrefix(period, "P") {
			return "", 0, bad("R is followed by a number, a slash and a duration of ISO 8601, such as R5/PT10S")
		}
	}
	switch {
	case period == "" || strings.HasPrefix(period, "@every "):
		text = period
	case strings.HasPrefix(period, "P"):
		span, err := due.ParseSpan(period)
		if err != nil {
			return "", 0, bad(fault.Text(err))
		}
		if span != (due.Span{}) {
			text = period
		}
	default:
		d, err := time.ParseDuration(period)
		if err != nil || d < 0 {
			return "", 0, bad(strconv.Quote(api.Shorten(period)) + " is no duration such as 10s or PT10S")
		}
		if d > 0 {
			text = "@every " + period
		}
	}
	return text, ticks, nil
}

// shownPeriod returns the period of a stored reminder in Dapr's form. For example, both "1s" and "R3/PT1S" give "@every
// 1s". If the period has months, shownPeriod returns it unchanged, because Dapr's form cannot express months.
func shownPeriod(period string) string {
	text, _, err := schedule(period)
	if err != nil || text == "" {
		return text
	}
	length, every := strings.CutPrefix(text, "@every ")
	if d, err := time.ParseDuration(length); every && err == nil {
		return "@every " + d.String()
	}
	if span, err := due.ParseSpan(text); err == nil && span.Months == 0 {
		return "@every " + span.Rest.String()
	}
	return period
}

// put converts a reminder or a timer to a due.Put. The caller must still set Home, Name and Spec.Payload. If the period
// is invalid, the error is fault.Invalid.
func put(r *actors.Reminder) (due.Put, error) {
	text, ticks, err := schedule(r.Period)
	p := due.Put{Due: r.DueTime, TTL: r.TTL, Spec: due.Spec{Schedule: text, Repeats: ticks}}
	if p.Due == "" {
		p.Due = "0s"
	}
	return p, err
}

// Put implements actors.Reminders.
func (r reminders) Put(ctx context.Context, app string, rem *actors.Reminder, overwrite bool) error {
	p, err := put(rem)
	if err != nil {
		return err
	}
	work, home, err := r.home(ctx, app, rem.Actor.Type)
	if err != nil {
		return err
	}
	p.Home, p.Name, p.Overwrite = home, workName(rem.Actor, rem.Name), overwrite
	if p.Spec.Payload, err = json.Marshal(payload{rem.DueTime, rem.Period, rem.TTL, rem.Data}); err != nil {
		return fault.Wrap(err, "actors.Reminder", "the data cannot be encoded")
	}
	if o := rem.Policy; o != nil {
		p.Spec.Policy = due.NewPolicy(o.Retry, o.MaxRetries, o.Interval)
	} else {
		p.Spec.Policy = due.DefaultPolicy()
		p.Spec.Policy.Persist = persist
	}
	_, err = work.Put(ctx, p)
	return err
}

// reminderOf decodes a stored reminder from the name and the payload of its due work.
func reminderOf(name string, stored []byte) (actors.Reminder, error) {
	var p payload
	parts := strings.SplitN(name, separator, 3)
	if err := json.Unmarshal(stored, &p); err != nil || len(parts) != 3 {
		return actors.Reminder{}, fault.New(fault.Corrupt, "actors.Reminder", "a stored reminder cannot be decoded")
	}
	actor := api.Actor{Type: parts[0], ID: state.ActorIDOf(parts[1])}
	return actors.Reminder{Actor: actor, Name: parts[2], DueTime: p.DueTime, Period: shownPeriod(p.Period),
		TTL:  p.TTL,
		Data: p.Data}, nil
}

// Get implements actors.Reminders.
func (r reminders) Get(ctx context.Context, app string, a api.Actor, name string) (rem actors.Reminder, found bool,
	err error) {
	work, home, err := r.home(ctx, app, a.Type)
	if fault.Is(err, fault.NotFound) {
		return rem, false, nil
	}
	if err != nil {
		return rem, false, err
	}
	w, found, err := work.Get(ctx, home, workName(a, name))
	if err != nil || !found {
		return rem, false, err
	}
	rem, err = reminderOf(w.Name, w.Spec.Payload)
	return rem, true, err
}

// List implements actors.Reminders.
func (r reminders) List(ctx context.Context, app string, a api.Actor, after string) (page []actors.Reminder,
	next string, err error) {
	work, home, err := r.home(ctx, app, a.Type)
	if fault.Is(err, fault.NotFound) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	list, more, err := work.List(ctx, home, family(a), after, maxListed)
	if err != nil {
		return nil, "", err
	}
	page = make([]actors.Reminder, len(list))
	for i := range list {
		if page[i], err = reminderOf(list[i].Name, list[i].Spec.Payload); err != nil {
			return nil, "", err
		}
	}
	if more && len(list) > 0 {
		next = list[len(list)-1].Name
	}
	return page, next, nil
}

// Remove implements actors.Reminders.
func (r reminders) Remove(ctx context.Context, app string, a api.Actor, name string) error {
	work, home, err := r.home(ctx, app, a.Type)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = work.Remove(ctx, home, workName(a, name))
	return err
}

// RemoveAll implements actors.Reminders.
func (r reminders) RemoveAll(ctx context.Context, app string, a api.Actor) error {
	work, home, err := r.home(ctx, app, a.Type)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return work.RemovePrefix(ctx, home, family(a))
}

// family returns the prefix with which the names of all reminders of an actor begin. If a.ID is empty, it returns the
// prefix for all actors of the type.
func family(a api.Actor) string {
	if a.ID == "" {
		return a.Type + separator
	}
	return workName(a, "")
}

func namespaceOf(home due.Home) string {
	namespace, _, _ := strings.Cut(home.Store, "/")
	return namespace
}

// Room implements due.Deliverer.
func (r reminders) Room(home due.Home) int {
	c, err := r.host.connection()
	if err != nil {
		return 0
	}
	app := api.App{ID: home.Prefix, Namespace: namespaceOf(home)}.Canonical()
	return room(c.places.View().Instances(app), r.host.Runtime.Reminding(app))
}

// room returns how many reminder ticks of an application may be in progress at the same time. The map ticks has the
// number of ticks in progress on each node. room deletes entries of this map.
//
// Each healthy instance adds perInstance to the result. The ticks in progress on nodes without a healthy instance are
// added too, so that they do not take room from healthy instances. If no instance is healthy, the result is 0.
func room(instances []discovery.Instance, ticks map[string]int) int {
	n := 0
	for _, i := range instances {
		if i.Healthy { // Protocol may be empty, because an application with a stream needs no port
			n += perInstance
			delete(ticks, i.Node)
		}
	}
	if n == 0 {
		return 0
	}
	for _, hung := range ticks {
		n += hung
	}
	return n
}

// Deliver implements due.Deliverer.
func (r reminders) Deliver(ctx context.Context, t *due.Tick) (due.Result, error) {
	rem, err := reminderOf(t.Name, t.Payload)
	if err != nil {
		return due.Failed, err
	}
	tick := fmt.Sprintf("%d.%d", t.Revision, t.Number)
	status, cancel, err := r.host.Runtime.Remind(ctx, namespaceOf(t.Home), &rem, tick, t.Attempt)
	switch {
	case fault.Is(err, fault.Corrupt), fault.Is(err, fault.TooLarge):
		// Another attempt would fail too: the answer of the application was refused, or the request is too large.
		return due.Failed, err
	case err != nil:
		return due.Undelivered, err
	case status == http.StatusNotFound && t.Final: // in earlier attempts, the application may still be starting
		return due.Unknown, nil
	case status < 200 || status > 299:
		return due.Failed, fault.New(fault.Internal, "actors.Reminder", "the application answered "+
			strconv.Itoa(status))
	case cancel:
		return due.Cancel, nil
	}
	return due.Done, nil
}

// plan implements actors.Plan with the schedules of package due.
type plan struct {
	work  due.Work
	base  time.Time
	begun bool
}

// newPlan returns the plan for the ticks of the timer t. Relative times in t count from this call.
func newPlan(t *actors.Reminder) (actors.Plan, error) {
	wish, err := put(t)
	if err != nil {
		return nil, err
	}
	p := &plan{base: time.Now()}
	p.work, err = wish.Resolve(p.now())
	return p, err
}

// now returns the current time in Unix milliseconds. It ignores changes of the wall clock after newPlan.
func (p *plan) now() uint64 {
	return uint64(p.base.UnixMilli() + time.Since(p.base).Milliseconds()) //nolint:gosec // after 1970
}

// Next implements actors.Plan.
func (p *plan) Next() (wait time.Duration, ok bool) {
	now := p.now()
	if p.begun && !p.work.Advance(now) {
		return 0, false
	}
	p.begun = true
	at, until := p.work.State.At, p.work.Spec.Until
	if until != 0 && at > until {
		return 0, false
	}
	return time.Duration(min(max(at, now)-now, maxWait)) * time.Millisecond, true //nolint:gosec // bounded
}
