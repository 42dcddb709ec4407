package actors

import "time"

// The leader spreads the actors of a scope over its hosts. When a host renews its session, the leader may advise it to
// transfer some of its actors to the host with the fewest actors. It gives no advice if the two hosts differ by at most
// one actor or at most 10 %. The host selects the actors, because only the host knows which of them are idle. Advice
// may be lost without harm.
//
// After advice, the two hosts take part in no other advice for giveEvery. The same applies to a host after a transfer
// to it. In this time, the hosts activate the actors and report new counts. The pause also limits the rate of
// transfers.
const (
	giveMost  = 100 // actors in one advice
	giveEvery = time.Second
	// keepFor is how long the leader gives no advice after an operator has moved actors. The time ends early if a
	// host joins or leaves.
	keepFor = 10 * time.Minute

	takeMost  = 500    // actors in Advice.Take
	takenMost = 10_000 // transferred actors of which a host is to be informed
)

// Advice is the answer to the renewal of a session.
type Advice struct {
	// Take has actors that were transferred to the host. The host should activate them, so that it counts them, and
	// deactivates them when they are idle. If the host misses some, it activates them at their next call.
	Take []Actor
	// Give is how many actors the host should transfer to the host To; 0 = none.
	Give int
	To   Host
}

// adviseLocked returns the advice for the host whose session s was just renewed. canGive is true if the host can
// transfer actors now. The caller holds mu.
func (k *Keeper) adviseLocked(s *session, canGive bool) (p Advice) {
	n := min(len(s.taken), takeMost)
	p.Take, s.taken = s.taken[:n:n], s.taken[n:]
	now := time.Now()
	if !canGive || s.Draining || now.Before(s.rests) || now.Before(k.kept[s.Scope]) {
		return p
	}
	var least *session
	hosts, all := 0, 0
	for _, o := range k.sessions {
		if o.Scope != s.Scope || o.ending || o.Draining || !o.counted || !o.shares(&s.Host) {
			continue
		}
		hosts, all = hosts+1, all+o.actors
		if !now.Before(o.rests) && (least == nil || o.fewer(least)) {
			least = o
		}
	}
	if least == nil {
		return p
	}
	surplus := s.actors - least.actors
	if surplus <= max(1, s.actors/10) {
		return p
	}
	if p.Give = min(surplus/2, s.actors-all/hosts, giveMost); p.Give > 0 {
		p.To = least.Host
		s.rests, least.rests = now.Add(giveEvery), now.Add(giveEvery)
	}
	return p
}

// fewer reports whether s has fewer actors than o. If both have equally many, fewer reports whether s has the lower id.
func (s *session) fewer(o *session) bool {
	return s.actors < o.actors || s.actors == o.actors && s.ID < o.ID
}

// tookLocked records that actors were transferred to the host whose session has the given id. The caller holds mu.
func (k *Keeper) tookLocked(host string, owned []Owned) {
	s := k.sessions[host]
	if s == nil {
		return
	}
	s.actors, s.rests = s.actors+len(owned), time.Now().Add(giveEvery)
	for i := range owned {
		if len(s.taken) < takenMost {
			s.taken = append(s.taken, owned[i].Actor)
		}
	}
}
