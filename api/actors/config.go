package actors

import (
	"encoding/json"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// declared is the JSON with which an application answers GET /dapr/config. As in Dapr, a duration that cannot be parsed
// is ignored, so the default applies.
type declared struct {
	Entities []string `json:"entities"`
	settings
	EntitiesConfig []struct {
		Entities []string `json:"entities"`
		settings
	} `json:"entitiesConfig"`
}

type settings struct {
	Idle       string `json:"actorIdleTimeout"`
	Drain      string `json:"drainOngoingCallTimeout"`
	Reentrancy *struct {
		Enabled  bool `json:"enabled"`
		MaxDepth *int `json:"maxStackDepth"`
	} `json:"reentrancy"`
}

func (s *settings) over(t TypeConfig) TypeConfig {
	if d, err := time.ParseDuration(s.Idle); err == nil && d > 0 {
		t.IdleTimeout = d
	}
	if d, err := time.ParseDuration(s.Drain); err == nil && d > 0 {
		t.DrainTimeout = d
	}
	if r := s.Reentrancy; r != nil {
		t.Reentrancy = r.Enabled
		if r.MaxDepth != nil && *r.MaxDepth > 0 {
			t.MaxDepth = *r.MaxDepth
		}
	}
	return t
}

// ParseConfig parses the answer of an application to GET /dapr/config.
func ParseConfig(body []byte) (Config, error) {
	var d declared
	if err := json.Unmarshal(body, &d); err != nil {
		return Config{}, &fault.Error{Code: fault.Invalid, Op: "actors.Config",
			Msg: "the answer of the application to GET /dapr/config is not the JSON of Dapr's actor configuration"}
	}
	base, own := d.over(DefaultType()), map[string]TypeConfig{}
	for _, e := range d.EntitiesConfig {
		for _, t := range e.Entities {
			own[t] = e.over(base)
		}
	}
	return NewConfig(d.Entities, base, own)
}

// NewConfig returns the configuration of an application that hosts the given actor types. overrides has the settings of
// individual types. All other types get the settings in base.
func NewConfig(types []string, base TypeConfig, overrides map[string]TypeConfig) (Config, error) {
	c := Config{Types: map[string]*TypeConfig{}}
	for _, t := range types {
		if err := state.ValidateActor(t, "id"); err != nil {
			return Config{}, err
		}
		c.Types[t] = &base
		if settings, given := overrides[t]; given {
			c.Types[t] = &settings
		}
	}
	return c, nil
}

// DefaultType returns the settings of an actor type for which the application sets nothing.
func DefaultType() TypeConfig {
	return TypeConfig{IdleTimeout: defaultIdle, DrainTimeout: defaultDrain, MaxDepth: defaultDepth}
}
