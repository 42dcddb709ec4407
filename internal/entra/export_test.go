package entra

import "github.com/Azure/azure-sdk-for-go/sdk/azcore"

// NewCredential returns a Credential with another source of tokens.
func NewCredential(source azcore.TokenCredential) *Credential { return newCredential(source) }
