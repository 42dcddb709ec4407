package admission

import "time"

// The bounds of the pace.
const (
	// HoldTarget is the mean duration of writes above which a Budget admits fewer concurrent writes.
	HoldTarget = 300 * time.Millisecond
	// paceFloor determines the minimum of the limit: size/paceFloor, but at least SmallRequest.
	paceFloor = 8
	// paceStep divides the size of the lane: the bound grows in steps of size/paceStep.
	paceStep = 16
)

// pace limits how many bytes small requests may use at a time. When the log and the disk are saturated, more
// concurrent writes only increase latency. pace adapts the limit to the duration of writes, by additive increase and
// multiplicative decrease, like TCP's congestion window.
type pace struct {
	size, floor int64
	bound       int64

	since time.Time     // when the interval began
	last  time.Duration // mean duration of writes in the last interval
	total time.Duration // duration of all writes of the interval
	n     int           // number of writes of the interval
	most  int64         // maximum bytes in use in the interval
	full  bool          // a request had to wait in the interval
}

func (p *pace) init(size int64) {
	p.size, p.bound, p.floor = size, size, min(size, max(size/paceFloor, SmallRequest))
}

// observe records a write that ends now. held is the duration of the write, and used is the number of bytes that are in
// use at its end. After each interval, observe adjusts the limit. An interval is at least as long as the mean duration
// of the writes in the previous interval, so that the previous adjustment has taken effect.
func (p *pace) observe(now time.Time, held time.Duration, used int64) {
	if p.n == 0 {
		p.since = now
	}
	p.n++
	p.total += held
	p.most = max(p.most, used)
	if now.Sub(p.since) < max(HoldTarget, p.last) {
		return
	}
	mean := p.total / time.Duration(p.n)
	busy := p.full || p.most > p.bound/2 // if the lane is not busy, a lower bound would not make writes faster
	switch {
	case busy && mean > HoldTarget:
		p.bound = max(p.floor, min(p.bound, p.most)*3/4)
	case p.full && mean < HoldTarget*3/4:
		p.bound = min(p.size, p.bound+p.size/paceStep)
	case !busy:
		p.bound = min(p.size, p.bound+p.size/paceStep)
	}
	p.last, p.total, p.n, p.most, p.full = mean, 0, 0, 0, false
}

// observe records the end of a write. worked is the time at which Share.Work was called.
func (l *lane) observe(worked time.Time) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pace.observe(now, now.Sub(worked), l.used.Load())
	l.limit.Set(float64(l.pace.bound))
	if more := l.withheld - (l.size - l.pace.bound); more > 0 {
		l.withheld -= more
		l.bytes.Release(more)
	}
}

// withhold keeps some of the released bytes back if the limit of pace is below the size of the lane. It returns how
// many of the released bytes other requests may use now. When the limit grows, observe makes the withheld bytes
// available again.
func (l *lane) withhold(bytes int64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pace.size == 0 {
		return bytes
	}
	keep := min(bytes, max(l.size-l.pace.bound-l.withheld, 0))
	l.withheld += keep
	return bytes - keep
}
