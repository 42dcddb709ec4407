package schema

// LockStatus is one lock of a lock.raft component that has an owner.
type LockStatus struct {
	Store      string `json:"store"`               // component name of the lock store
	Namespace  string `json:"namespace,omitempty"` // empty = the default one
	Prefix     string `json:"prefix"`              // of the protected keys; by default the id of the application
	Resource   string `json:"resource"`
	Owner      string `json:"owner"`
	Revision   string `json:"revision"`         // the fencing token
	ExpiryMS   int64  `json:"expiryMs"`         // counted from the acquisition or the last renewal
	LeftMS     *int64 `json:"leftMs,omitempty"` // milliseconds until the lock ends without a renewal; nil = unknown
	StateStore string `json:"stateStore"`       // state store whose writes can carry the token
}

// LockReleaseRequest names a lock to end, regardless of its owner.
type LockReleaseRequest struct {
	Store    string  `json:"store"`
	Resource string  `json:"resource"`
	Prefix   *string `json:"prefix,omitempty"`   // null = the only prefix with such a lock
	Revision string  `json:"revision,omitempty"` // token that the lock must still have; empty = any
}
