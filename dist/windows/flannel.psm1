# Functions of start.ps1, boot.ps1, stop.ps1, reset.ps1, install-services.ps1, kube-proxy.ps1 and verify.ps1. They handle
# parameters, processes and services; everything about networks is in flanneld.exe. All of it must run in Windows
# PowerShell 5.1, which every Windows Server has.

Set-StrictMode -Version 2
$ErrorActionPreference = 'Stop'

# The description of services that these scripts created, by which they are recognized.
$script:Mark = 'Made by install-services.ps1 of flannel'

function Write-Step([string]$Text) {
    Write-Host ('{0:HH:mm:ss}  {1}' -f (Get-Date), $Text)
}

function Assert-Administrator {
    $me = New-Object Security.Principal.WindowsPrincipal([Security.Principal.WindowsIdentity]::GetCurrent())
    if (-not $me.IsInRole([Security.Principal.WindowsBuiltInRole]::Administrator)) {
        throw 'This needs an elevated shell: start PowerShell with "Run as administrator".'
    }
}

function Assert-File([string]$Path, [string]$Hint) {
    if (-not (Test-Path -LiteralPath $Path -PathType Leaf)) {
        throw "$Path is missing. $Hint"
    }
}

# Returns an absolute path, because services start in another directory and .NET does not use PowerShell's; without a
# trailing backslash, which PowerShell 5.1 does not escape in an argument with spaces.
function Get-FullPath([string]$Path) {
    if (-not $Path) { return $Path }
    $full = $ExecutionContext.SessionState.Path.GetUnresolvedProviderPathFromPSPath($Path)
    if ($full.Length -gt 3) { $full = $full.TrimEnd('\') }
    $full
}

# Writes a file if its content differs, and returns whether it did; without a byte order mark, which Set-Content of
# PowerShell 5.1 would write before UTF-8.
function Write-Text([string]$Path, [string]$Text) {
    if ((Test-Path -LiteralPath $Path) -and [IO.File]::ReadAllText($Path) -ceq $Text) { return $false }
    $null = New-Item -ItemType Directory -Force -Path (Split-Path -Parent $Path)
    [IO.File]::WriteAllText($Path, $Text)
    $true
}

# Reads a JSON object into a hashtable, in which a missing key is no error. Returns an empty one if there is no file.
function Read-Settings([string]$Path) {
    $settings = @{}
    if (Test-Path -LiteralPath $Path) {
        foreach ($p in ([IO.File]::ReadAllText($Path) | ConvertFrom-Json).PSObject.Properties) { $settings[$p.Name] = $p.Value }
    }
    $settings
}

# Joins arguments to a command line with the quotes that programs expect; Start-Process and services add none.
function Join-Arguments([string[]]$Arguments) {
    $quoted = foreach ($word in $Arguments) {
        if ($word -ne '' -and $word -notmatch '[\s"]') { $word; continue }
        '"' + ($word -replace '(\\*)"', '$1$1\"' -replace '(\\+)$', '$1$1') + '"'
    }
    $quoted -join ' '
}

# Runs a program and returns its stdout, line by line, as UTF-8. Its stderr goes to the console as it comes; in a remote
# session, in ISE and with redirected output, PowerShell 5.1 would otherwise take its first line for an error and stop.
function Invoke-Program([string]$Program, [string[]]$Arguments) {
    $ErrorActionPreference = 'Continue'
    $encoding = [Console]::OutputEncoding
    try { [Console]::OutputEncoding = New-Object Text.UTF8Encoding $false } catch { Write-Verbose 'there is no console' }
    $global:LASTEXITCODE = -1 # stays so if the program cannot be run
    try {
        & $Program @Arguments 2>&1 | ForEach-Object {
            if ($_ -is [Management.Automation.ErrorRecord]) { Write-Host $_.Exception.Message } else { $_ }
        }
    } finally {
        try { [Console]::OutputEncoding = $encoding } catch { Write-Verbose 'there is no console' }
    }
}

# Runs flanneld.exe and returns its exit status. Its output goes to the console.
function Invoke-Flanneld([string]$Flanneld, [string[]]$Arguments) {
    Write-Step ('flanneld.exe ' + (Join-Arguments $Arguments))
    Invoke-Program $Flanneld $Arguments | Out-Host
    $LASTEXITCODE
}

# Runs flanneld.exe and fails if it does.
function Assert-Flanneld([string]$Flanneld, [string[]]$Arguments) {
    $code = Invoke-Flanneld $Flanneld $Arguments
    if ($code -ne 0) {
        throw "flanneld.exe ended with status $code; the reason is above. Fix it and run this script again."
    }
}

# Runs a program and returns its output as one text. Fails if the program does.
function Read-Program([string]$Program, [string[]]$Arguments) {
    $text = Invoke-Program $Program $Arguments
    if ($LASTEXITCODE -ne 0) { throw "$Program ended with status $LASTEXITCODE; the reason is above." }
    $text -join "`n"
}

# Returns kube-proxy's flags. flanneld.exe knows those for this node's network and HNS. Version is the output of
# kube-proxy --version.
function Get-KubeProxyArguments([string]$Flanneld, [string]$Version, [string]$NodeName, [string]$KubeConfig, [string]$FeatureGates) {
    $answer = Read-Program $Flanneld @('source-vip', '--json', "--kube-proxy-version=$Version", "--kube-proxy-feature-gates=$FeatureGates") | ConvertFrom-Json
    '--v=2'
    '--proxy-mode=kernelspace'
    "--hostname-override=$NodeName" # otherwise kube-proxy takes local endpoints for remote ones, and deletes them
    "--kubeconfig=$KubeConfig"
    $answer.kubeProxyFlags
}

# Returns the directories in which containerd looks for the CNI configuration (confDir) and the plugins (binDir).
function Get-CniDirectories([string]$Flanneld) {
    Read-Program $Flanneld @('cni-dirs', '--json') | ConvertFrom-Json
}

function Get-RecordPath([string]$BaseDir, [string]$Name) { Join-Path $BaseDir "run\$Name.json" }

# Returns the process that these scripts started under this name, if it still runs. Another process may have its ID by
# now.
function Get-OwnProcess([string]$BaseDir, [string]$Name) {
    $record = Read-Settings (Get-RecordPath $BaseDir $Name)
    if (-not $record.ContainsKey('id')) { return $null }
    $process = Get-Process -Id $record['id'] -ErrorAction SilentlyContinue
    if ($process -and $process.StartTime.ToFileTimeUtc() -eq $record['started']) {
        return $process | Add-Member -NotePropertyName CommandText -NotePropertyValue $record['command'] -PassThru
    }
    $null
}

function Get-OwnService([string]$Name) {
    Get-CimInstance -ClassName Win32_Service -Filter "Name='$Name'" | Where-Object { $_.Description -eq $script:Mark }
}

# Calls a method of a service. It returns a status, which PowerShell does not treat as an error.
function Invoke-ServiceMethod($Service, [string]$Method, [hashtable]$Arguments) {
    $status = (Invoke-CimMethod -InputObject $Service -MethodName $Method -Arguments $Arguments).ReturnValue
    if ($status -ne 0) { throw "The service $($Service.Name): $Method ended with status $status of Win32_Service." }
}

function Test-Component([string]$BaseDir, [string]$Name) {
    if (Get-OwnProcess $BaseDir $Name) { return $true }
    $service = Get-Service -Name $Name -ErrorAction SilentlyContinue
    [bool]($service -and $service.Status -eq 'Running')
}

function Stop-Component([string]$BaseDir, [string]$Name) {
    if (Get-OwnService $Name) { Stop-Service -Name $Name -Force; Write-Step "stopped the service $Name" }
    $process = Get-OwnProcess $BaseDir $Name
    if ($process) {
        Stop-Process -InputObject $process -Force
        $null = $process.WaitForExit(10000)
        Write-Step "stopped $Name"
    }
    Remove-Item -LiteralPath (Get-RecordPath $BaseDir $Name) -ErrorAction SilentlyContinue
}

# Creates or changes a service of these scripts, and starts it.
function Start-OwnService([string]$Name, [string]$Program, [string[]]$Arguments, [string]$LogDir, [string]$StartMode) {
    $words = @($Program, '--windows-service') + $Arguments
    # A service has no stderr. Kubernetes includes this program, which writes it to a file.
    $runner = Join-Path (Split-Path -Parent $Program) 'kube-log-runner.exe'
    if (Test-Path -LiteralPath $runner) { $words = @($runner, "-log-file=$LogDir\$Name.log") + $words }
    $command = Join-Arguments $words
    $own = Get-OwnService $Name
    if (-not $own) {
        $null = New-Service -Name $Name -BinaryPathName $command -Description $script:Mark -StartupType $StartMode
        $null = Read-Program 'sc.exe' @('failure', $Name, 'reset=', '600', 'actions=', 'restart/5000/restart/30000')
        Write-Step "created the service $Name"
    } elseif ($own.PathName -cne $command) {
        Invoke-ServiceMethod $own 'Change' @{ PathName = $command }
        Stop-Service -Name $Name -Force
        Write-Step "changed the service $Name"
    }
    Start-Service -Name $Name
}

# Runs kubelet, kube-proxy or flanneld with these arguments: as a service of these scripts, or as a background process
# that writes to LogDir. A service of others is only started; a process of others is not touched.
function Start-Component([string]$BaseDir, [string]$Name, [string]$Program, [string[]]$Arguments, [string]$LogDir, [bool]$AsService,
    [string]$StartMode = 'Automatic') {
    if ((Get-Service -Name $Name -ErrorAction SilentlyContinue) -and -not (Get-OwnService $Name)) {
        Start-Service -Name $Name
        Write-Step "the service $Name runs; these scripts did not create it and do not change its arguments"
        return
    }
    if ($AsService) {
        Start-OwnService $Name $Program $Arguments $LogDir $StartMode
        return
    }
    $command = Join-Arguments (@($Program) + $Arguments)
    $process = Get-OwnProcess $BaseDir $Name
    if ($process -and $process.CommandText -ceq $command) { Write-Step "$Name runs already"; return }
    if ($process) { Stop-Component $BaseDir $Name }
    $other = Get-Process -Name $Name -ErrorAction SilentlyContinue | Select-Object -First 1
    if ($other) { throw "$Name runs already, as process $($other.Id), and this script did not start it: stop it first." }
    foreach ($log in "$LogDir\$Name.log", "$LogDir\$Name.out.log") { # the former log may say why the process ended
        if (Test-Path -LiteralPath $log) { Move-Item -LiteralPath $log -Destination "$log.1" -Force }
    }
    $process = Start-Process -FilePath $Program -ArgumentList (Join-Arguments $Arguments) -WindowStyle Hidden -PassThru `
        -RedirectStandardError (Join-Path $LogDir "$Name.log") -RedirectStandardOutput (Join-Path $LogDir "$Name.out.log")
    $null = $process.Handle # otherwise its exit status is lost
    if ($process.WaitForExit(2000)) { throw "$Name ended at once, with status $($process.ExitCode): $LogDir\$Name.log says why." }
    $record = @{ id = $process.Id; started = $process.StartTime.ToFileTimeUtc(); command = $command }
    $null = Write-Text (Get-RecordPath $BaseDir $Name) ($record | ConvertTo-Json)
    Write-Step "started $Name; it writes to $LogDir\$Name.log"
}

Export-ModuleMember -Function *
