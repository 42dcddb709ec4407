package schema

// ActorsStatus describes the actors of one application, as the admin API and the console show them.
type ActorsStatus struct {
	App    string            `json:"app"`
	Store  string            `json:"store"` // with the state of the actors
	Types  []string          `json:"types"` // registered by any instance; they stay registered when it stops
	Hosts  []ActorHostStatus `json:"hosts"`
	Actors []ActorStatus     `json:"actors"` // active ones, by type and id
	More   bool              `json:"more"`   // there are more actors than Actors

	Reminders     []ActorReminder `json:"reminders,omitempty"`     // that are pending, by type, id and name
	MoreReminders bool            `json:"moreReminders,omitempty"` // there are more than Reminders
}

// ActorReminder is a pending reminder of an actor.
type ActorReminder struct {
	Type string `json:"type"`
	ID   string `json:"id"`
	JobStatus
}

// ActorHostStatus is one instance of an application that hosts actors.
type ActorHostStatus struct {
	Node     string   `json:"node"`
	Types    []string `json:"types"`
	Draining bool     `json:"draining"` // it gets no further actors
	Actors   int      `json:"actors"`   // active ones, as of the last renewal of its session
}

// ActorStatus is one active actor.
type ActorStatus struct {
	Type  string `json:"type"`
	ID    string `json:"id"`
	Node  string `json:"node"` // of its owner; empty = the session of the owner has ended
	Epoch uint64 `json:"epoch"`
}

// ActorMove is the request to move an active actor to another node.
type ActorMove struct {
	Type string `json:"type"`
	ID   string `json:"id"`
	Node string `json:"node"`
}

// ActorRebalance is the request to distribute the actors of a type evenly.
type ActorRebalance struct {
	Type string `json:"type"`
}

// ActorsMoved is the answer to a request that moves actors.
type ActorsMoved struct {
	Moved int `json:"moved"`
	Busy  int `json:"busy"` // stay, because their running calls did not end in time
}
