package schema

// ActorsStatus describes the actors of one application, as the admin API and the console show them.
type ActorsStatus struct {
	App    string            `json:"app"`
	Store  string            `json:"store"` // state store of the actors
	Types  []string          `json:"types"` // registered by an instance, and kept when the instance stops
	Hosts  []ActorHostStatus `json:"hosts"`
	Actors []ActorStatus     `json:"actors"` // active actors, by type and id
	More   bool              `json:"more"`   // Actors does not list all active actors

	Reminders     []ActorReminder `json:"reminders,omitempty"`     // pending reminders, by type, id and name
	MoreReminders bool            `json:"moreReminders,omitempty"` // Reminders does not list all
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
	Draining bool     `json:"draining"` // the host gets no further actors
	Actors   int      `json:"actors"`   // number of active actors at the last renewal of the session
}

// ActorStatus is one active actor.
type ActorStatus struct {
	Type  string `json:"type"`
	ID    string `json:"id"`
	Node  string `json:"node"` // node of the owner; empty = the session of the owner has ended
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
	Busy  int `json:"busy"` // actors that stay, because their running calls did not end in time
}
