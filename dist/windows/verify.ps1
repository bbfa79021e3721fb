<#
.SYNOPSIS
Runs one phase of Documentation/windows-verify.md and keeps what flanneld.exe and HNS answer, to be sent with a report.

.DESCRIPTION
Each phase ends with a bundle of flanneld doctor, without secrets, with the answers of HNS as they are. The phase prepare
takes the host's address away for half a minute, and so do settle, twice, and cleanup; the others change nothing. Run it on a server that
has nothing else to do.

No test runs this script: there is no PowerShell where flanneld is tested.
#>
[CmdletBinding()]
param(
    [ValidateSet('look', 'prepare', 'again', 'reboot', 'node', 'settle', 'cleanup')]
    [Parameter(Mandatory)][string]$Phase,
    # overlay or l2bridge
    [string]$NetworkMode = 'overlay',
    # Name or address of the adapter for the pod network. Default: that of the default route.
    [string]$InterfaceName = '',
    [string]$BaseDir = 'C:\k',
    [string]$OutDir = 'C:\flannel-verify'
)

Set-StrictMode -Version 2
$ErrorActionPreference = 'Stop'
$flanneld = Join-Path $BaseDir 'flanneld.exe'

function Write-Step([string]$Text) {
    Write-Host ('{0:HH:mm:ss}  {1}' -f (Get-Date), $Text)
}

# Runs flanneld.exe. In a remote session, in ISE and with redirected output, PowerShell 5.1 would take its first line on
# stderr for an error and stop.
function Invoke-Flanneld([string[]]$Arguments) {
    $ErrorActionPreference = 'Continue'
    Write-Step ('flanneld.exe ' + ($Arguments -join ' '))
    & $flanneld @Arguments 2>&1 | ForEach-Object {
        if ($_ -is [Management.Automation.ErrorRecord]) { Write-Host $_.Exception.Message } else { $_ }
    } | Out-Host
}

if (-not (Test-Path -LiteralPath $flanneld)) { throw "$flanneld is missing. Unpack flannel-windows-amd64.zip there." }
# Start-Transcript and flanneld.exe must write to the same directory, whatever the current one is.
$OutDir = $ExecutionContext.SessionState.Path.GetUnresolvedProviderPathFromPSPath($OutDir)
$bundle = Join-Path $OutDir "$Phase.tar.gz"
if (Test-Path -LiteralPath $bundle) { throw "$bundle exists: this phase has run. Choose another -OutDir to run it again." }
$null = New-Item -ItemType Directory -Force -Path $OutDir
$null = Start-Transcript -LiteralPath (Join-Path $OutDir "$Phase.txt") -Force

Invoke-Flanneld @('version')
if ($Phase -eq 'prepare' -or $Phase -eq 'again' -or $Phase -eq 'reboot') {
    $arguments = @('prepare', '--json', "--network-mode=$NetworkMode")
    if ($InterfaceName) { $arguments = @("--iface=$InterfaceName") + $arguments }
    Invoke-Flanneld $arguments
} elseif ($Phase -eq 'node') {
    Invoke-Flanneld @('status', '--json')
    Invoke-Flanneld @('source-vip', '--json')
    Invoke-Flanneld @('cni-dirs', '--json')
} elseif ($Phase -eq 'settle') {
    # Another process does not wait for HNS to settle, so this one asks for a network at once.
    Invoke-Flanneld @('cleanup')
    Invoke-Flanneld @('prepare', '--json', "--network-mode=$NetworkMode")
} elseif ($Phase -eq 'cleanup') {
    Invoke-Flanneld @('cleanup')
}
# A failed command above is an answer, too: the doctor looks at what it left.
Invoke-Flanneld @('--kube-subnet-mgr', 'doctor', "--bundle=$bundle")
$null = Stop-Transcript
if (-not (Test-Path -LiteralPath $bundle)) { throw "flanneld doctor wrote no bundle; the reason is above." }
Write-Step "wrote $bundle and $Phase.txt"
