package schema

// LockStatus is one lock of a lock.raft component that has an owner.
type LockStatus struct {
	Store      string `json:"store"`               // component name of the lock store
	Namespace  string `json:"namespace,omitempty"` // empty = the default one
	Prefix     string `json:"prefix"`              // of the keys it protects: by default the id of the application
	Resource   string `json:"resource"`
	Owner      string `json:"owner"`
	Revision   string `json:"revision"`         // the fencing token
	ExpiryMS   int64  `json:"expiryMs"`         // from the acquisition or the last renewal on
	LeftMS     *int64 `json:"leftMs,omitempty"` // until it ends if it is not renewed; nil = not known
	StateStore string `json:"stateStore"`       // whose writes can carry the token
}

// LockReleaseRequest names a lock to end, whoever owns it.
type LockReleaseRequest struct {
	Store    string  `json:"store"`
	Resource string  `json:"resource"`
	Prefix   *string `json:"prefix,omitempty"`   // null = the only prefix with such a lock
	Revision string  `json:"revision,omitempty"` // only if the lock still has this token; empty = any
}
